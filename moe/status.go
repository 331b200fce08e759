package moe

import (
	"fmt"

	"moerail/kernels/abi"
)

// stageError turns the device's status into an error, or into s.input where the
// round goes on.
func (c *Communicator) stageError(s *slot) error {
	st := s.status
	if st.Code == abi.CodeOK {
		return nil
	}
	re := &RoundError{Phase: stagePhase(st.Stage), Round: s.round.Load(), Ranks: []int{c.rank}, Token: -1, Pick: -1}
	switch st.Code {
	case abi.CodeInvalidExpert:
		re.Code, re.Token, re.Pick = CodeInvalidExpert, int(st.Token), int(st.Pick)
		re.What = fmt.Sprintf("token %d, pick %d names expert %d, want -1 or 0 to %d", st.Token, st.Pick, st.Value, c.plan.Shape.NumExperts-1)
		s.input = re
		return nil
	case abi.CodeTooManyTokens:
		re.Code = CodeTooManyTokens
		re.What = fmt.Sprintf("%d tokens, the limit is %d", st.Value, st.Limit)
		s.input = re
		return nil
	case abi.CodeOverflow:
		re.Code = CodeOverflow
		re.What = fmt.Sprintf("%d rows received, %d fit; the others get NaN for what they sent here", st.Value, st.Limit)
		s.input = re
		return nil
	case abi.CodeBadHeader, abi.CodeBadRow:
		re.Code, re.Ranks = CodeTransport, []int{int(st.Peer)}
		re.What = fmt.Sprintf("rank %d sent a block that cannot be true (%s, value %d, limit %d); it gets NaN", st.Peer,
			map[uint32]string{abi.CodeBadHeader: "header", abi.CodeBadRow: "row"}[st.Code], st.Value, st.Limit)
		s.input = re
		return nil
	}
	if err := c.failed(); err != nil {
		return err
	}
	re.Code, re.What = CodeTransport, fmt.Sprintf("the device stopped with code %d", st.Code)
	c.fail(re)
	return re
}

func stagePhase(stage uint32) string {
	switch stage {
	case abi.StageDispatchSend:
		return PhaseDispatchSend
	case abi.StageDispatchRecv:
		return PhaseDispatchRecv
	case abi.StageCombineSend:
		return PhaseCombineSend
	default:
		return PhaseCombineRecv
	}
}

// overflow is the error of a round that every rank gives up, since some would
// receive too much.
func (c *Communicator) overflow(s *slot, round uint64) *RoundError {
	re := &RoundError{Code: CodeOverflow, Phase: PhaseDispatchRecv, Round: round, Token: -1, Pick: -1}
	first := s.dispatch.Overflows[0]
	for _, o := range s.dispatch.Overflows {
		re.Ranks = append(re.Ranks, o.Rank)
	}
	re.What = fmt.Sprintf("%s would receive more than the limit of %d rows, rank %d %d; nothing beyond the windows was sent",
		ranksText(re.Ranks), c.plan.Shape.MaxRecvRows, first.Rank, first.Rows)
	return re
}
