package moe

import (
	"errors"
	"fmt"
	"strings"

	"moerail/peergroup"
)

// Code is what went wrong, in the words of the case-file format.
type Code string

// Codes of a RoundError, and of CodeOf.
const (
	CodeInvalidExpert Code = "invalid_expert"
	CodeTooManyTokens Code = "too_many_tokens"
	CodeShape         Code = "shape"
	CodeOverflow      Code = "overflow"
	CodeDeadline      Code = "deadline"
	CodePeerLost      Code = "peer_lost"
	CodeBusy          Code = "busy"
	CodePhaseOrder    Code = "phase_order"
	CodeMismatch      Code = "mismatch"
	CodeRegister      Code = "register"
	CodeTransport     Code = "transport"
	CodeClosed        Code = "closed"
)

// Phases of a round, in the words of the case-file format.
const (
	PhaseSetup        = "setup"
	PhaseDispatchSend = "dispatch_send"
	PhaseDispatchRecv = "dispatch_recv"
	PhaseExperts      = "experts"
	PhaseCombineSend  = "combine_send"
	PhaseCombineRecv  = "combine_recv"
	PhaseClose        = "close"
	PhaseBarrier      = "barrier"
)

// RoundError is any error of a round.
type RoundError struct {
	Code  Code
	Phase string
	Round uint64 // says nothing in PhaseBarrier, which may be in no round
	Ranks []int  // at fault; this rank for its own input
	Token int    // -1 when no token is meant
	Pick  int    // -1 when no pick is meant
	What  string
	Err   error // the cause, if there is one
}

func (e *RoundError) Error() string {
	var b strings.Builder
	if b.WriteString("moe: "); e.Phase != PhaseBarrier {
		fmt.Fprintf(&b, "round %d, ", e.Round)
	}
	fmt.Fprintf(&b, "%s: ", e.Phase)
	if e.What != "" {
		b.WriteString(e.What)
	} else {
		b.WriteString(string(e.Code))
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

func (e *RoundError) Unwrap() error { return e.Err }

// Is matches another RoundError that has only a code: errors.Is(err, moe.ErrBusy).
func (e *RoundError) Is(target error) bool {
	t, ok := target.(*RoundError)
	return ok && t.What == "" && t.Err == nil && t.Code == e.Code
}

// One error per code, to compare with errors.Is.
var (
	ErrInvalidExpert = &RoundError{Code: CodeInvalidExpert}
	ErrTooManyTokens = &RoundError{Code: CodeTooManyTokens}
	ErrShape         = &RoundError{Code: CodeShape}
	ErrOverflow      = &RoundError{Code: CodeOverflow}
	ErrDeadline      = &RoundError{Code: CodeDeadline}
	ErrPeerLost      = &RoundError{Code: CodePeerLost}
	ErrBusy          = &RoundError{Code: CodeBusy}
	ErrPhaseOrder    = &RoundError{Code: CodePhaseOrder}
	ErrTransport     = &RoundError{Code: CodeTransport}
	ErrClosed        = &RoundError{Code: CodeClosed}
)

// SetupError is what New fails with when some rank could not set up.
type SetupError struct {
	Code  Code
	Ranks []int
	Err   error
}

func (e *SetupError) Error() string { return fmt.Sprintf("moe: setup: %v", e.Err) }
func (e *SetupError) Unwrap() error { return e.Err }

// CodeOf is the code of an error of this package; "" for other errors.
func CodeOf(err error) Code {
	var re *RoundError
	var se *SetupError
	var mm *peergroup.MismatchError
	switch {
	case errors.As(err, &re):
		return re.Code
	case errors.As(err, &se):
		return se.Code
	case errors.As(err, &mm):
		return CodeMismatch
	}
	return ""
}

func ranksText(ranks []int) string {
	switch len(ranks) {
	case 0:
		return "a rank" // the fabric did not say which
	case 1:
		return fmt.Sprintf("rank %d", ranks[0])
	}
	s := make([]string, len(ranks))
	for i, r := range ranks {
		s[i] = fmt.Sprint(r)
	}
	return "ranks " + strings.Join(s, ", ")
}
