package casefile

import (
	"errors"
	"fmt"
	"slices"

	"moerail/internal/reference"
)

// Match compares a result with an expectation, bit for bit except that any NaN
// matches any NaN. What an expectation leaves open is not compared: every
// Message, a Phase of "", a nil Round, a nil Wire or field of it, and, beside an error of
// the whole round, nil Out, ExpertCounts and SourceRows. All differences are
// reported, the first in each rank's Out only.
func Match(want, got *Result) error {
	return match(want, got, func(_, p int, want, got *RankResult) error {
		return reference.CompareRank(p, got.Out, &reference.RankOutput{Out: want.Out})
	})
}

// Check judges a result of case c by the definition: counts, errors and
// messages must be as Expect says; outputs exactly so for reduce home with fp32
// output, and elsewhere within the bound that reference.Real states.
func Check(c *Case, got *Result) error {
	want, err := c.Expect()
	if err != nil {
		return err
	}
	if c.Reduce == "home" && c.OutDType == "fp32" {
		return Match(want, got)
	}
	outs, _, err := c.evaluate(reference.Real)
	if err != nil {
		return err
	}
	return match(want, got, func(round, p int, _, got *RankResult) error {
		return reference.CompareRank(p, got.Out, &outs[round].Ranks[p])
	})
}

func match(want, got *Result, outputs func(round, p int, want, got *RankResult) error) error {
	var faults []error
	differ := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if err := matchError(want.SetupError, got.SetupError); err != nil {
		differ("setup_error: %w", err)
	}
	if len(want.Rounds) != len(got.Rounds) {
		differ("%d rounds, want %d", len(got.Rounds), len(want.Rounds))
		return errors.Join(faults...)
	}
	if want.Outstanding != got.Outstanding {
		differ("outstanding is %d, want %d", got.Outstanding, want.Outstanding)
	}
	for i := range want.Rounds {
		w, g := &want.Rounds[i], &got.Rounds[i]
		if len(w.Ranks) != len(g.Ranks) {
			differ("round %d: %d ranks, want %d", i, len(g.Ranks), len(w.Ranks))
			continue
		}
		for p := range w.Ranks {
			for _, err := range matchRank(w.Ranks[p], g.Ranks[p], func() error { return outputs(i, p, w.Ranks[p], g.Ranks[p]) }) {
				differ("round %d, rank %d: %w", i, p, err)
			}
		}
		if err := matchWire(w.Wire, g.Wire); err != nil {
			differ("round %d: %w", i, err)
		}
	}
	return errors.Join(faults...)
}

func matchRank(want, got *RankResult, outputs func() error) (faults []error) {
	if (want == nil) != (got == nil) {
		return []error{fmt.Errorf("null is %v, want %v", got == nil, want == nil)}
	}
	if want == nil {
		return nil
	}
	if err := matchError(want.Error, got.Error); err != nil {
		faults = append(faults, fmt.Errorf("error: %w", err))
	}
	if !slices.Equal(want.Active, got.Active) {
		faults = append(faults, fmt.Errorf("active is %v, want %v", got.Active, want.Active))
	}
	open := want.Error != nil
	if (want.ExpertCounts != nil || !open) && !slices.Equal(want.ExpertCounts, got.ExpertCounts) {
		faults = append(faults, fmt.Errorf("expert_counts is %v, want %v", got.ExpertCounts, want.ExpertCounts))
	}
	if (want.SourceRows != nil || !open) && !slices.Equal(want.SourceRows, got.SourceRows) {
		faults = append(faults, fmt.Errorf("source_rows is %v, want %v", got.SourceRows, want.SourceRows))
	}
	if want.Out != nil || !open {
		if err := outputs(); err != nil {
			faults = append(faults, fmt.Errorf("out: %w", err))
		}
	}
	return faults
}

func matchError(want, got *Error) error {
	show := func(e *Error) string {
		if e == nil {
			return "none"
		}
		text := fmt.Sprintf("%s ranks %v", e.Code, e.Ranks)
		if want != nil && want.Phase != "" {
			text += " phase " + e.Phase
		}
		for i, v := range []*int{e.Round, e.Token, e.Pick} {
			if v != nil && (i > 0 || want != nil && want.Round != nil) {
				text += fmt.Sprintf(" %s %d", []string{"round", "token", "pick"}[i], *v)
			}
		}
		if e.Field != "" {
			text += " field " + e.Field
		}
		return text
	}
	if w, g := show(want), show(got); w != g {
		if got != nil {
			g += " (" + got.Message + ")"
		}
		return fmt.Errorf("is %s, want %s", g, w)
	}
	return nil
}

func matchWire(want, got *Wire) error {
	if want == nil {
		return nil
	}
	if got == nil {
		return errors.New("wire is null")
	}
	for _, f := range []struct {
		name      string
		want, got *int64
	}{{"messages", want.Messages, got.Messages}, {"bytes", want.Bytes, got.Bytes}, {"rows", want.Rows, got.Rows}} {
		if f.want != nil && (f.got == nil || *f.got != *f.want) {
			is := "null"
			if f.got != nil {
				is = fmt.Sprint(*f.got)
			}
			return fmt.Errorf("wire.%s is %s, want %d", f.name, is, *f.want)
		}
	}
	return nil
}
