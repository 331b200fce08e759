package rounds

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"moerail/moe"
	"moerail/peergroup"
)

// RankResult is what one rank found; its JSON goes to rank 0.
type RankResult struct {
	Rank        int
	Error       string       // "" unless a round failed here
	FailedAt    int64        // when, in Unix nanoseconds
	Abandoned   bool         // it stopped because another rank failed
	Times       []phaseNanos // of each measured round
	Wire        wireCounts   // of the measured rounds together
	ExpertRows  []uint64     // picks of each local expert in them
	Mallocs     uint64       // of this rank's process, if Counts
	Counts      bool         // the first rank of its process
	Outstanding int          // most operations open after a step
	Checked     uint64       // rows, warm-up included
	Wrong       uint64
	WrongFirst  string
	Paths       []moe.Path
}

// wireCounts are differences of moe.Stats.
type wireCounts struct {
	Messages, Bytes, Rows, UniqueRows, ExpertRows, LocalBytes uint64
	Steps, BusyNanos, Posts, Doorbells                        uint64
}

func (w *wireCounts) add(o wireCounts) {
	w.Messages += o.Messages
	w.Bytes += o.Bytes
	w.Rows += o.Rows
	w.UniqueRows += o.UniqueRows
	w.ExpertRows += o.ExpertRows
	w.LocalBytes += o.LocalBytes
	w.Steps += o.Steps
	w.BusyNanos += o.BusyNanos
	w.Posts += o.Posts
	w.Doorbells += o.Doorbells
}

func (res *RankResult) fill(r *rank, before moe.Stats, mallocs uint64) {
	after := r.comm.Stats()
	res.Times, res.Mallocs, res.Outstanding = r.times, mallocs, r.outstanding
	res.Wire = wireCounts{
		Messages: after.Messages - before.Messages, Bytes: after.Bytes - before.Bytes,
		Rows: after.Rows - before.Rows, UniqueRows: after.UniqueRows - before.UniqueRows,
		ExpertRows: after.ReceivedPicks - before.ReceivedPicks, LocalBytes: after.LocalBytes - before.LocalBytes,
		Steps: after.ProxySteps - before.ProxySteps, BusyNanos: after.ProxyBusyNanos - before.ProxyBusyNanos,
		Posts: after.Posts - before.Posts, Doorbells: after.Doorbells - before.Doorbells,
	}
	for e, n := range after.ExpertPicks {
		res.ExpertRows = append(res.ExpertRows, n-before.ExpertPicks[e])
	}
	res.judged(r)
	res.Paths = r.comm.Paths()
}

// judged copies what the judge has found so far.
func (res *RankResult) judged(r *rank) {
	if r.judge != nil {
		res.Checked, res.Wrong, res.WrongFirst = r.judge.rows, r.judge.wrong, r.judge.message
	}
}

// chunkBytes is how much of a result one collective carries.
const chunkBytes = 1 << 20

// gatherResults returns the results of all ranks on rank 0, and nil elsewhere.
func gatherResults(ctx context.Context, g peergroup.Group, mine *RankResult) ([]*RankResult, error) {
	blob, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	sizes, err := g.AllGather(ctx, "run/size", binary.LittleEndian.AppendUint64(nil, uint64(len(blob))))
	if err != nil {
		return nil, err
	}
	var most uint64
	for p, s := range sizes {
		if len(s) != 8 {
			return nil, fmt.Errorf("rank %d announced its result in %d bytes, want 8", p, len(s))
		}
		most = max(most, binary.LittleEndian.Uint64(s))
	}
	all := make([][]byte, g.Size())
	for from := 0; uint64(from) < most; from += chunkBytes {
		part := blob[min(from, len(blob)):min(from+chunkBytes, len(blob))]
		parts, err := g.AllGather(ctx, "run/result", part)
		if err != nil {
			return nil, err
		}
		if g.Rank() == 0 {
			for p := range parts {
				all[p] = append(all[p], parts[p]...)
			}
		}
	}
	if g.Rank() != 0 {
		return nil, nil
	}
	results := make([]*RankResult, g.Size())
	for p := range all {
		results[p] = new(RankResult)
		if err := json.Unmarshal(all[p], results[p]); err != nil {
			return nil, fmt.Errorf("result of rank %d: %w", p, err)
		}
	}
	return results, nil
}
