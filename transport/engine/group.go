package engine

import (
	"fmt"

	"moerail/transport"
)

// Target is one write of an application's scatter: Len bytes from LocalOff of
// the group's local region to RemoteOff of entry Entry's.
type Target struct {
	Entry     int
	LocalOff  uint64
	RemoteOff uint64
	Len       uint64
}

// ScatterRequest writes to many peers of a group. Every target's peer counts one
// immediate, cut further as by WriteImms(Len, 1), or with SplitBytes WriteImms(Len,
// number of NICs).
type ScatterRequest struct {
	Group   *PeerGroup
	Targets []Target
	Imm     transport.Imm
	NoImm   bool
	NICs    NICs // AnyNIC deals to one NIC, AllNICs and OverNICs to several
	// SplitBytes cuts each target's bytes over the NICs; otherwise targets are
	// dealt to them in contiguous runs.
	SplitBytes bool
}

// Scatter posts a request's targets with templated operations. Targets is the
// caller's again at return. No targets end at once.
func (e *Engine) Scatter(r ScatterRequest, done Done) (Handle, error) {
	g := r.Group
	if g == nil || g.e != e {
		return Handle{}, fmt.Errorf("%w: peer group", ErrForeign)
	}
	for i := range r.Targets {
		if err := g.checkTarget(&r.Targets[i]); err != nil {
			return Handle{}, fmt.Errorf("target %d: %w", i, err)
		}
	}
	first, n, err := e.pick(r.NICs)
	if err != nil {
		return Handle{}, err
	}
	x := e.newTransfer(shapeScatter, transport.OpWriteImm, done)
	x.group = g
	for k := 0; k < n; k++ {
		j := &x.jobs[(first+k)%len(e.limits)]
		j.group = g
		if r.SplitBytes {
			for i := range r.Targets {
				lo, hi := shard(r.Targets[i].Len, n, k)
				j.scatter(&r, &r.Targets[i], lo, hi, k == 0)
			}
		} else {
			lo, hi := run(len(r.Targets), n, k)
			for i := lo; i < hi; i++ {
				j.scatter(&r, &r.Targets[i], 0, r.Targets[i].Len, true)
			}
		}
		j.count = len(j.ops)
	}
	return e.start(x)
}

// scatter adds the operations for bytes [lo, hi) of a target. A target of length
// 0 still has its immediate, on one NIC.
func (j *job) scatter(r *ScatterRequest, t *Target, lo, hi uint64, first bool) {
	op := transport.ScatterOp{Entry: r.Group.entries[t.Entry].slot, NoImm: r.NoImm, Imm: r.Imm}
	if t.Len == 0 {
		if first && !r.NoImm {
			op.LocalOff, op.RemoteOff = t.LocalOff, t.RemoteOff
			j.ops = append(j.ops, op)
		}
		return
	}
	for at := lo; at < hi; at += op.Len {
		op.Len = min(hi-at, r.Group.e.maxMsg)
		op.LocalOff, op.RemoteOff = t.LocalOff+at, t.RemoteOff+at
		j.ops = append(j.ops, op)
	}
}

func (g *PeerGroup) checkTarget(t *Target) error {
	if t.Entry < 0 || t.Entry >= len(g.entries) {
		return fmt.Errorf("%w: group entry %d, want 0 to %d", ErrArgument, t.Entry, len(g.entries)-1)
	}
	en := &g.entries[t.Entry]
	if en.slot < 0 {
		return fmt.Errorf("%w: entry %d", ErrHole, t.Entry)
	}
	if err := checkRange("local", t.LocalOff, t.Len, g.localSize); err != nil {
		return err
	}
	return checkRange("remote", t.RemoteOff, t.Len, en.size)
}

// Barrier sends one immediate without payload to every peer of the group,
// holes left out, dealt over the chosen NICs. A group without peers ends at once.
// It waits for nobody: the peers' own immediates are counted with ImmCounter.
func (e *Engine) Barrier(g *PeerGroup, imm transport.Imm, nics NICs, done Done) (Handle, error) {
	if g == nil || g.e != e {
		return Handle{}, fmt.Errorf("%w: peer group", ErrForeign)
	}
	first, n, err := e.pick(nics)
	if err != nil {
		return Handle{}, err
	}
	x := e.newTransfer(shapeScatter, transport.OpWriteImm, done)
	x.group = g
	for k := 0; k < n; k++ {
		j := &x.jobs[(first+k)%len(e.limits)]
		j.group = g
		lo, hi := run(len(g.entry), n, k)
		for slot := lo; slot < hi; slot++ {
			j.ops = append(j.ops, transport.ScatterOp{Entry: int32(slot), Imm: imm})
		}
		j.count = len(j.ops)
	}
	return e.start(x)
}
