package casefile

import (
	"fmt"
	"slices"

	"moerail/internal/reference"
)

// Reference returns the case's configuration as the reference takes it. The
// slices are the case's own.
func (c *Case) Reference() (reference.Config, error) {
	dtype, err := reference.ParseDType(c.DType)
	if err != nil {
		return reference.Config{}, err
	}
	outDType, err := reference.ParseDType(c.OutDType)
	if err != nil {
		return reference.Config{}, err
	}
	return reference.Config{
		Ranks: c.Ranks, Experts: c.Experts, TopK: c.TopK, Hidden: c.Hidden, Placement: c.Placement,
		DType: dtype, OutDType: outDType, ScaleBlock: c.ScaleBlock,
		ReduceAtHome: c.Reduce == "home", ApplyWeights: c.ApplyWeights, Replicas: c.Replicas,
		MaxTokens: c.MaxTokens, MaxRecvRows: c.MaxRecvRows, Scale: c.Scale, Bias: c.Bias,
	}, nil
}

// ReferenceInputs returns one round's inputs as the reference takes them,
// sharing memory.
func ReferenceInputs(ranks []RankInput) []reference.Input {
	in := make([]reference.Input, len(ranks))
	for p, r := range ranks {
		in[p] = reference.Input{X: r.X, IDs: r.IDs, Weights: r.Weights}
	}
	return in
}

// Expect returns what the case must give, from the reference's exact
// evaluation. Wire is there only where it can be counted by hand, and then
// Messages alone. It fails for a case whose outcome the definition does not
// determine: ranks killed or absent, partitions, failed registrations, pauses
// that the deadline does not outlast.
func (c *Case) Expect() (*Result, error) {
	outs, setup, err := c.evaluate(reference.Exact)
	if err != nil {
		return nil, err
	}
	r := &Result{SetupError: setup, Rounds: []RoundResult{}}
	for i, out := range outs {
		round := RoundResult{Ranks: make([]*RankResult, c.Ranks), Wire: c.wire(out)}
		for p, ref := range out.Ranks {
			active := make([]bool, c.Ranks)
			for q := range active {
				active[q] = true
			}
			round.Ranks[p] = &RankResult{Out: ref.Out, ExpertCounts: ref.ExpertCounts, SourceRows: ref.SourceRows,
				Active: active, Error: resultError(ref.Err, i)}
		}
		r.Rounds = append(r.Rounds, round)
	}
	return r, nil
}

// evaluate runs the reference over all rounds; a repeated round is evaluated once.
func (c *Case) evaluate(eval func(reference.Config, []reference.Input) (*reference.Output, error)) ([]*reference.Output, *Error, error) {
	if err := c.determined(); err != nil {
		return nil, nil, err
	}
	if setup := c.mismatch(); setup != nil {
		return nil, setup, nil
	}
	config, err := c.Reference()
	if err != nil {
		return nil, nil, err
	}
	var outs []*reference.Output
	for _, r := range c.Rounds {
		out, err := eval(config, ReferenceInputs(r.Ranks))
		if err != nil {
			return nil, nil, err
		}
		for range r.Repeat {
			outs = append(outs, out)
		}
	}
	return outs, nil, nil
}

func (c *Case) determined() error {
	f := &c.Faults
	for key, used := range map[string]bool{"kill": len(f.Kill) > 0, "absent": len(f.Absent) > 0,
		"partition": len(f.Partition) > 0, "fail_register": len(f.FailRegister) > 0} {
		if used {
			return fmt.Errorf("casefile: the definition does not say what happens with faults.%s", key)
		}
	}
	for i, p := range f.Pause {
		limit := c.Deadline
		if p.Round == 0 && c.FirstDeadline > 0 {
			limit = c.FirstDeadline
		}
		if p.Length >= limit {
			return fmt.Errorf("casefile: the definition does not say what happens after faults.pause[%d], %v with a deadline of %v", i, p.Length, limit)
		}
	}
	return nil
}

// mismatch is the set-up error of ranks that disagree: the first key, in the
// order of the format, whose value is not the same on all ranks, and the ranks
// that do not have what most have, or what rank 0 has if no value has most.
func (c *Case) mismatch() *Error {
	if len(c.Overrides) == 0 {
		return nil
	}
	for _, f := range paramFields {
		settings := make([]Params, c.Ranks)
		agree := make([]int, c.Ranks) // how many ranks have the value of this one
		for p := range settings {
			settings[p] = c.RankParams(p)
		}
		common := 0
		for p := range settings {
			for q := range settings {
				if !f.differ(&settings[p], &settings[q]) {
					agree[p]++
				}
			}
			if agree[p] > agree[common] {
				common = p
			}
		}
		var odd []int
		for p := range settings {
			if f.differ(&settings[p], &settings[common]) {
				odd = append(odd, p)
			}
		}
		if odd != nil {
			return &Error{Code: "mismatch", Phase: "setup", Ranks: odd, Field: f.key,
				Message: fmt.Sprintf("%s differs on ranks %v", f.key, odd)}
		}
	}
	return nil
}

func resultError(e *reference.InputError, round int) *Error {
	if e == nil {
		return nil
	}
	r := &Error{Code: e.Code, Phase: "dispatch_send", Round: At(round), Ranks: slices.Clone(e.Ranks), Message: e.Reason}
	if e.Code == reference.CodeOverflow {
		r.Phase = "" // found by whichever phase has all row counts first
	}
	if e.Token >= 0 {
		r.Token = At(e.Token)
	}
	if e.Pick >= 0 {
		r.Pick = At(e.Pick)
	}
	return r
}

// wire counts messages where each block is one: every rank a node of its own,
// one NIC, windows that hold any round. A block goes from every rank to every
// other, and a return block back for each pair with rows.
func (c *Case) wire(out *reference.Output) *Wire {
	plain := c.RanksPerNode == 0 && c.NICs == 1 && c.Replicas == 1 && c.MaxRecvRows == 0 &&
		(c.WindowRows == 0 || c.WindowRows >= c.MaxTokens)
	if !plain {
		return nil
	}
	messages := int64(c.Ranks*(c.Ranks-1) + out.ReturnPairs)
	return &Wire{Messages: &messages}
}
