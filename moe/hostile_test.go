package moe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"moerail/moe/routing"
	"moerail/transport"
	"moerail/transport/engine"
)

// hostile is a rank that has all keys and keeps no rule: it writes what it likes
// over its communicator's own engine.
type hostile struct {
	c       *Communicator
	tracker *engine.Tracker
}

func newHostile(t *testing.T, c *Communicator) *hostile {
	h := &hostile{c: c}
	if err := c.engine.Call(func(w *engine.Worker) { h.tracker = w.NewTracker() }); err != nil {
		t.Fatal(err)
	}
	return h
}

// post writes n bytes of the outbox to rank to, and raises the immediate of that
// index in the communicator's range.
func (h *hostile) post(t *testing.T, to int, index uint32, local, remote, n uint64) {
	t.Helper()
	var err error
	if cerr := h.c.engine.Call(func(w *engine.Worker) {
		err = w.Scatter(h.c.groups[0], h.tracker, []engine.GroupOp{{
			Entry: int32(to), Imm: h.c.base + transport.Imm(index), LocalOff: local, RemoteOff: remote, Len: n,
		}})
	}); err != nil || cerr != nil {
		t.Fatal(err, cerr)
	}
}

// block writes a block for rank to into the outbox: rows of picks of to's first
// expert, as a correct rank would. It returns its length.
func (h *hostile) block(to, rows int, round uint64) uint64 {
	pl := h.c.plan
	sh := &pl.Shape
	b := h.c.outbox.Host[pl.SendOffset(0, to):][:sh.SendStride]
	clear(b)
	le := binary.LittleEndian
	le.PutUint64(b, round)
	le.PutUint32(b[8:], sh.Generation)
	le.PutUint32(b[12:], uint32(rows))
	le.PutUint32(b[24:], uint32(rows)) // all picks are of local expert 0
	for i := range rows {
		row := b[int(sh.HeaderBytes)+i*int(sh.RowBytes):]
		meta := row[sh.MetaOffset:]
		le.PutUint32(meta, uint32(i))
		le.PutUint32(meta[4:], 1)
		le.PutUint32(meta[12:], uint32(i))
		le.PutUint32(meta[16:], 0x3f800000)
	}
	return pl.BlockBytes(uint32(rows))
}

func (h *hostile) send(t *testing.T, to int, n uint64, round uint64) {
	t.Helper()
	pl := h.c.plan
	m := routing.Meaning{Kind: routing.KindDispatch, Parity: uint8(round & 1)}
	h.post(t, to, pl.ImmIndex(m), pl.SendOffset(0, to), pl.WindowOffset(0, int(round&1), int(pl.Shape.Rank)), n)
}

// TestBlocksThatCannotBeTrue: rank 2 sends rank 0 a block in which some words were
// altered. Rank 0 serves what it can or says what is wrong; what ranks 0 and 1
// have to do with each other is right in every case.
func TestBlocksThatCannotBeTrue(t *testing.T) {
	n := 400
	if testing.Short() {
		n = 80
	}
	refused := 0
	for i := range n {
		rng := newRand(uint64(i))
		w := small(t, 3, func(s *setting) {
			s.seed, s.cfg.Layout = uint64(i), Layout(i%3)
			s.cfg.ReduceAtHome, s.cfg.Deadline = i%2 == 0, 2*time.Second
		})
		h := newHostile(t, w.cs[2])
		toks := []tokens{w.draw(5, drawIDs(rng, 5, 2, 4)), w.draw(7, drawIDs(rng, 7, 2, 4))} // not to rank 2
		size := h.block(0, 6, 0)
		sh := &h.c.plan.Shape
		b := h.c.outbox.Host[h.c.plan.SendOffset(0, 0):][:sh.SendStride]
		for range 1 + rng.IntN(3) {
			at := rng.IntN(8) * 4
			if rng.IntN(2) == 0 {
				at = int(sh.HeaderBytes) + rng.IntN(6)*int(sh.RowBytes) + int(sh.MetaOffset) + rng.IntN(5)*4
			}
			v := [...]uint32{0, 1, 7, 0xffffffff, 0x80000000, rng.Uint32(), 1 << 16}[rng.IntN(7)]
			binary.LittleEndian.PutUint32(b[at:], v)
		}
		h.send(t, 0, size, 0)
		h.send(t, 1, h.block(1, 0, 0), 0)
		outs := make([][]byte, 2)
		w.each(func(r int, c *Communicator) error {
			if r == 2 {
				return nil
			}
			b, err := c.Dispatch(0, toks[r].input())
			if err != nil {
				var re *RoundError
				if b == nil || r != 0 || !errors.As(err, &re) || re.Code != CodeTransport && re.Code != CodeOverflow {
					return fmt.Errorf("batch %v, error %w", b != nil, err)
				}
				if re.Code == CodeTransport && (len(re.Ranks) != 1 || re.Ranks[0] != 2) {
					return fmt.Errorf("%+v does not blame rank 2", re)
				}
				refused++
			}
			if xerr := w.experts(c, b); xerr != nil && err == nil {
				return xerr
			}
			outs[r] = w.nanOut(toks[r].n)
			if cerr := c.Combine(0, nil, 0, outs[r], 0); (cerr == nil) != (err == nil) {
				return fmt.Errorf("combine says %v after %v", cerr, err)
			}
			return nil
		})
		for r := range toks {
			w.checkOut(r, toks[r], outs[r])
		}
		w.close()
	}
	if refused < n/4 {
		t.Errorf("%d of %d altered blocks were refused", refused, n)
	}
}

// TestRowsAlteredAfterTheyWereChecked: rank 2 overwrites its block between rank
// 0's dispatch and combine.
func TestRowsAlteredAfterTheyWereChecked(t *testing.T) {
	for i := range 60 {
		rng := newRand(uint64(i))
		w := small(t, 3, func(s *setting) { s.cfg.Layout, s.cfg.ReduceAtHome = Layout(i%3), i%2 == 0 })
		h := newHostile(t, w.cs[2])
		toks := []tokens{w.draw(5, drawIDs(rng, 5, 2, 4)), w.draw(7, drawIDs(rng, 7, 2, 4))}
		h.send(t, 0, h.block(0, 6, 0), 0)
		h.send(t, 1, h.block(1, 0, 0), 0)
		outs := make([][]byte, 2)
		w.each(func(r int, c *Communicator) error {
			if r == 2 {
				return nil
			}
			b, err := c.Dispatch(0, toks[r].input())
			if err != nil {
				return err
			}
			if err := w.experts(c, b); err != nil {
				return err
			}
			if r == 0 {
				sh := &c.plan.Shape
				block := c.inbox.Host[c.plan.WindowOffset(0, 0, 2):][:sh.WindowStride]
				for j := range block {
					if rng.IntN(3) == 0 {
						block[j] = byte(rng.Uint32())
					}
				}
			}
			outs[r] = w.nanOut(toks[r].n)
			err = c.Combine(0, nil, 0, outs[r], 0)
			if r == 0 && CodeOf(err) == CodeTransport {
				err = nil
			}
			return err
		})
		for r := range toks {
			w.checkOut(r, toks[r], outs[r])
		}
		w.close()
	}
}

// TestImmediatesOutOfTurn: rank 2 raises immediates that are not its own, or not
// due. The others end with an error that names who is to blame or late, within
// the deadline, and touch nothing they should not.
func TestImmediatesOutOfTurn(t *testing.T) {
	n := 120
	if testing.Short() {
		n = 40
	}
	for i := range n {
		rng := newRand(uint64(i))
		w := small(t, 3, func(s *setting) {
			s.cfg.Deadline, s.cfg.Slots, s.cfg.RanksPerNode = 100*time.Millisecond, 2, 1+i%2
			s.cfg.WindowRows = 4 * (i % 3 / 2) // every third on the exact path
			s.nics, s.cfg.ShardBytes = 2, 128
		})
		h := newHostile(t, w.cs[2])
		all := h.c.plan.NumImms() + 3
		for range 1 + rng.IntN(12) {
			h.post(t, rng.IntN(2), rng.Uint32N(all), 0, h.c.plan.WindowOffset(0, 0, 2), 64)
		}
		start := time.Now()
		w.each(func(r int, c *Communicator) error {
			if r == 2 {
				return nil
			}
			tk := tokens{n: 2, x: make([]float32, 48), ids: []int32{0, 2, 3, 5}, w: make([]float32, 4)}
			tk.encode(&c.cfg)
			b, err := c.Dispatch(0, tk.input())
			if b != nil {
				err = c.Combine(0, nil, 0, w.nanOut(2), 0)
			}
			if code := CodeOf(err); code != CodeDeadline && code != CodeTransport {
				return fmt.Errorf("error %w, want a deadline or a transport error", err)
			}
			return nil
		})
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("case %d took %v", i, took)
		}
		w.close()
	}
}

// TestRouteTablesThatCannotBeTrue: on the exact path rank 2 announces row counts
// beyond the limit, or fewer shards than it sends.
func TestRouteTablesThatCannotBeTrue(t *testing.T) {
	for name, rows := range map[string]uint32{"huge": 1 << 31, "more than a rank may send": 9, "fewer than it sends": 0} {
		t.Run(name, func(t *testing.T) {
			w := small(t, 3, func(s *setting) { s.cfg.WindowRows, s.cfg.Deadline = 4, 5*time.Second })
			h := newHostile(t, w.cs[2])
			pl := h.c.plan
			imm := pl.ImmIndex(routing.Meaning{Kind: routing.KindRoute})
			own := h.c.route.Host
			for q := range 3 {
				binary.LittleEndian.PutUint32(own[4*q:], rows)
			}
			send := func(to int) {
				var err error
				_ = h.c.engine.Call(func(ww *engine.Worker) {
					err = ww.Scatter(h.c.groups[1], h.tracker, []engine.GroupOp{{
						Entry: int32(to), Imm: h.c.base + transport.Imm(imm), RemoteOff: 2 * 12, Len: 12,
					}})
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			for to := range 2 {
				h.send2(t, to)
				h.send2(t, to)
				send(to)
			}
			w.each(func(r int, c *Communicator) error {
				if r == 2 {
					return nil
				}
				_, err := c.Dispatch(0, Input{})
				var re *RoundError
				if !errors.As(err, &re) || re.Code != CodeTransport || len(re.Ranks) != 1 || re.Ranks[0] != 2 {
					return fmt.Errorf("%w (%+v), want rank 2 blamed", err, re)
				}
				return nil
			})
		})
	}
}

// send2 sends an empty block as a payload of the exact path.
func (h *hostile) send2(t *testing.T, to int) {
	t.Helper()
	pl := h.c.plan
	n := h.block(to, 0, 0)
	h.post(t, to, pl.ImmIndex(routing.Meaning{Kind: routing.KindPayload}), pl.SendOffset(0, to), pl.WindowOffset(0, 0, 2), n)
}

// TestDevicesThatLie: words that no device of ours writes end in an error that
// names this rank, not in writes outside a block.
func TestDevicesThatLie(t *testing.T) {
	w := small(t, 2, func(s *setting) { s.cfg.Deadline = 5 * time.Second })
	c := w.cs[0]
	c.slots[0].words[0].Word(1).Store(routing.Word(0, 1<<30))
	c.engine.Wake()
	for i := 0; c.failed() == nil && i < 100_000; i++ {
		pause(i)
	}
	_, err := c.Dispatch(0, Input{})
	var re *RoundError
	if !errors.As(err, &re) || re.Code != CodeTransport || len(re.Ranks) != 1 || re.Ranks[0] != 0 {
		t.Errorf("%v (%+v), want rank 0 blamed", err, re)
	}
}
