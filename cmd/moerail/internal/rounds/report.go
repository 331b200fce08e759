package rounds

import (
	"fmt"
	"slices"

	"moerail/cmd/moerail/internal/machine"
)

// Report is the JSON document of a run. Times are in microseconds.
type Report struct {
	Format   string       `json:"format"`
	Version  string       `json:"version"`
	Config   Options      `json:"config"`
	Machine  machine.Info `json:"machine"`
	Verified bool         `json:"verified"`
	// Rounds is how many rounds were measured on every rank.
	Rounds   int              `json:"rounds"`
	Phases   map[string]Times `json:"phases"`
	Dispatch Times            `json:"dispatch"`
	Combine  Times            `json:"combine"`
	Round    Times            `json:"round"`
	Wire     Wire             `json:"wire"`
	Proxy    Proxy            `json:"proxy"`
	// AllocsPerRound is heap allocations in all processes of the run over rounds,
	// whole ones only, as testing.AllocsPerRun: Go's own scheduler makes a few in a
	// run when goroutines park.
	AllocsPerRound uint64 `json:"allocs_per_round"`
	// Outstanding is the most operations still open after any step.
	Outstanding int        `json:"outstanding"`
	ExpertLoad  ExpertLoad `json:"expert_load"`
	Paths       []Path     `json:"paths"`
	// Error is there only when a round failed or an output was wrong.
	Error string `json:"error,omitempty"`
}

// Times are percentiles over rounds, by nearest rank: a value that occurred.
type Times struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Wire is what crossed the fabric in a round, over all ranks.
type Wire struct {
	Messages   float64 `json:"messages_per_round"`
	Bytes      float64 `json:"bytes_per_round"`
	Rows       float64 `json:"rows_per_round"`
	RowBytes   int     `json:"row_bytes"` // a dispatched row as it travels
	UniqueRows float64 `json:"unique_rows_per_round"`
	ExpertRows float64 `json:"expert_rows_per_round"`
	LocalBytes float64 `json:"local_bytes_per_round"`
}

// Proxy is the work of the proxies of all ranks in a round.
type Proxy struct {
	Steps     float64 `json:"steps_per_round"`
	BusyNanos float64 `json:"busy_ns_per_round"`
	Posts     float64 `json:"posts_per_round"`
	Doorbells float64 `json:"doorbells_per_round"`
}

// ExpertLoad says how uneven the routing was: picks of the busiest expert over
// the mean of all.
type ExpertLoad struct {
	MaxOverMean float64 `json:"max_over_mean"`
}

// Path says how one rank reaches another.
type Path struct {
	From int    `json:"from"`
	To   int    `json:"to"`
	Path string `json:"path"`
}

// Merge makes the report of all ranks' results.
func Merge(o *Options, version string, results []*RankResult) *Report {
	rep := &Report{Format: "moerail-run/1", Version: version, Config: *o, Machine: machine.Describe(),
		Phases: map[string]Times{}, Paths: []Path{}}
	rep.Rounds = len(results[0].Times)
	var sum wireCounts
	var mallocs, wrong, checked uint64
	var loads []uint64
	for _, r := range results {
		rep.Rounds = min(rep.Rounds, len(r.Times))
		sum.add(r.Wire)
		loads = append(loads, r.ExpertRows...)
		rep.Outstanding = max(rep.Outstanding, r.Outstanding)
		checked += r.Checked
		wrong += r.Wrong
		if r.Counts {
			mallocs += r.Mallocs
		}
		for _, p := range r.Paths {
			if p.To != r.Rank {
				rep.Paths = append(rep.Paths, Path{r.Rank, p.To, p.Name})
			}
		}
		if r.WrongFirst != "" && rep.Error == "" {
			rep.Error = "not verified: " + r.WrongFirst
		}
	}
	if wrong > 1 {
		rep.Error += fmt.Sprintf("; %d of %d rows are wrong", wrong, checked)
	}
	if text := failure(results); text != "" {
		rep.Error = text
	}
	rep.Verified = o.Verify != "off" && rep.Error == ""
	rep.fillTimes(results)
	if rep.Rounds == 0 {
		return rep
	}
	per := func(n uint64) float64 { return float64(n) / float64(rep.Rounds) }
	rep.Wire = Wire{Messages: per(sum.Messages), Bytes: per(sum.Bytes), Rows: per(sum.Rows), RowBytes: o.rowBytes(),
		UniqueRows: per(sum.UniqueRows), ExpertRows: per(sum.ExpertRows), LocalBytes: per(sum.LocalBytes)}
	rep.Proxy = Proxy{per(sum.Steps), per(sum.BusyNanos), per(sum.Posts), per(sum.Doorbells)}
	rep.AllocsPerRound = mallocs / uint64(rep.Rounds)
	var most, total uint64
	for _, n := range loads {
		most = max(most, n)
		total += n
	}
	if total > 0 {
		rep.ExpertLoad.MaxOverMean = float64(most) * float64(len(loads)) / float64(total)
	}
	return rep
}

// failure is the error of the rank that failed first, by its clock; ranks that
// only stopped because another had come after that.
func failure(results []*RankResult) string {
	var first *RankResult
	for _, r := range results {
		switch {
		case r.Error == "":
		case first == nil, first.Abandoned && !r.Abandoned,
			first.Abandoned == r.Abandoned && r.FailedAt < first.FailedAt:
			first = r
		}
	}
	if first == nil {
		return ""
	}
	return first.Error
}

// fillTimes takes, for every round, the longest over the ranks, and of these
// the percentiles.
func (rep *Report) fillTimes(results []*RankResult) {
	over := func(of func(phaseNanos) int64) Times {
		worst := make([]int64, rep.Rounds)
		for i := range worst {
			for _, r := range results {
				worst[i] = max(worst[i], of(r.Times[i]))
			}
		}
		return percentiles(worst)
	}
	for phase, name := range phaseNames {
		rep.Phases[name] = over(func(t phaseNanos) int64 { return t[phase] })
	}
	rep.Dispatch = over(func(t phaseNanos) int64 { return t[dispatchSend] + t[dispatchRecv] })
	rep.Combine = over(func(t phaseNanos) int64 { return t[combineSend] + t[combineRecv] })
	rep.Round = over(func(t phaseNanos) int64 {
		return t[dispatchSend] + t[dispatchRecv] + t[combineSend] + t[combineRecv]
	})
}

// percentiles sorts nanos.
func percentiles(nanos []int64) Times {
	if len(nanos) == 0 {
		return Times{}
	}
	slices.Sort(nanos)
	at := func(percent int) float64 {
		rank := (percent*len(nanos) + 99) / 100 // nearest rank, from 1
		return float64(nanos[max(rank, 1)-1]) / 1e3
	}
	return Times{P50: at(50), P90: at(90), P99: at(99), Max: at(100)}
}

// LowerBound is the bytes that payloads and scales of the rows that crossed the
// fabric need in both directions, per round. It is 0 where a return row stands
// for a pick and not for a row.
func (rep *Report) LowerBound() float64 {
	if rep.Config.Reduce != "expert" {
		return 0
	}
	return rep.Wire.Rows * float64(rep.Config.payloadBytes()+rep.Config.resultBytes())
}

func (o *Options) payloadBytes() int {
	switch o.DType {
	case "fp32":
		return 4 * o.Hidden
	case "fp8":
		return o.Hidden + (o.Hidden+ScaleBlock-1)/ScaleBlock*4
	}
	return 2 * o.Hidden
}

func (o *Options) resultBytes() int {
	if o.OutDType == "fp32" {
		return 4 * o.Hidden
	}
	return 2 * o.Hidden
}

// rowBytes follows the protocol: payload, scales and metadata, each padded to 16.
func (o *Options) rowBytes() int {
	pad := func(n int) int { return (n + 15) / 16 * 16 }
	if o.DType == "fp8" {
		return pad(o.Hidden) + pad(o.payloadBytes()-o.Hidden) + pad(8+12*o.TopK)
	}
	return pad(o.payloadBytes()) + pad(8+12*o.TopK)
}
