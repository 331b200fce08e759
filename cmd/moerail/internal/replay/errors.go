package replay

import (
	"errors"
	"slices"

	"moerail/internal/casefile"
	"moerail/moe"
	"moerail/peergroup"
)

// refusal says whether a code is about a rank's own input.
func refusal(code string) bool {
	switch moe.Code(code) {
	case moe.CodeInvalidExpert, moe.CodeTooManyTokens, moe.CodeShape:
		return true
	}
	return false
}

// ends says whether a communicator is of no more use after a code.
func ends(code string) bool {
	return !refusal(code) && moe.Code(code) != moe.CodeOverflow
}

// roundError puts an error of a call in the words of the result. A slot counts
// its own rounds, so the case's number replaces the error's.
func roundError(err error, phase, round, rank int) *casefile.Error {
	var re *moe.RoundError
	if !errors.As(err, &re) {
		return &casefile.Error{Code: string(moe.CodeTransport), Phase: casefile.Phases[phase], Round: casefile.At(round),
			Ranks: []int{rank}, Message: err.Error()}
	}
	e := &casefile.Error{Code: string(re.Code), Phase: re.Phase, Round: casefile.At(round), Ranks: slices.Clone(re.Ranks), Message: err.Error()}
	slices.Sort(e.Ranks)
	if e.Ranks == nil {
		e.Ranks = []int{}
	}
	if re.Token >= 0 {
		e.Token = casefile.At(re.Token)
	}
	if re.Pick >= 0 {
		e.Pick = casefile.At(re.Pick)
	}
	return e
}

// setupError picks what to say of set-up: a configuration outside the limits is
// a fault of the case and returned as an error; a disagreement goes before what
// followed from it.
func setupError(errs []error) (*casefile.Error, error) {
	var config *moe.ConfigError
	var mismatch *peergroup.MismatchError
	var missing *peergroup.MissingError
	var setup *moe.SetupError
	all := errors.Join(errs...)
	e := &casefile.Error{Phase: moe.PhaseSetup, Ranks: []int{}, Message: all.Error()}
	for _, err := range errs {
		if errors.As(err, &config) {
			return nil, config
		}
	}
	switch {
	case errors.As(all, &mismatch):
		e.Code, e.Ranks, e.Message = string(moe.CodeMismatch), mismatch.Ranks(), mismatch.Error()
		if len(mismatch.Fields) > 0 {
			e.Field = mismatch.Fields[0].Name
		}
	case errors.As(all, &setup) && setup.Code != "":
		e.Code, e.Ranks, e.Message = string(setup.Code), slices.Clone(setup.Ranks), setup.Error()
	case errors.As(all, &missing):
		e.Code, e.Ranks, e.Message = string(moe.CodeDeadline), missing.Missing, missing.Error()
	default:
		e.Code = string(moe.CodeOf(all))
		if e.Code == "" {
			e.Code = string(moe.CodeTransport)
		}
		for p, err := range errs {
			if err != nil {
				e.Ranks = append(e.Ranks, p)
			}
		}
	}
	return e, nil
}
