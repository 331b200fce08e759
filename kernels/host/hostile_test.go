package host

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"moerail/kernels/abi"
)

// scribble changes words of the blocks that rank q got from the others: picked
// places get picked values, so that both random bytes and near misses occur.
func (w *world) scribble(q int, bits []byte) {
	r := w.r[q]
	area := []([]uint32){}
	for p := range w.r {
		if p != q {
			area = append(area, view[uint32](r.sl.Window[w.round&1]+uint64(p)*r.sh.WindowStride, int(r.sh.WindowStride/4)))
		}
	}
	if r.sl.Overflow != 0 {
		area = append(area, view[uint32](r.sl.Overflow, int(r.sh.MaxRecvRows*r.sh.RowBytes/4)))
	}
	meta := int(r.sh.MetaOffset / 4)
	for len(bits) >= 8 && len(area) > 0 {
		a := area[int(bits[0])%len(area)]
		at := int(binary.LittleEndian.Uint16(bits[1:3]))
		row := int(r.sh.HeaderBytes/4) + at%8*int(r.sh.RowBytes/4)
		switch bits[3] % 4 {
		case 0: // header
			at %= int(r.sh.HeaderBytes / 4)
		case 1: // metadata of an early row
			at = row + meta + at/8%(2+3*int(r.sh.TopK))
		}
		v := binary.LittleEndian.Uint32(bits[4:8])
		if bits[3]&16 != 0 {
			v %= 16
		}
		at %= len(a)
		if bits[3]&32 != 0 {
			v += a[at]
		}
		a[at] = v
		bits = bits[8:]
	}
}

// hostileRound runs a round in which rank 0's memory is scribbled over before and
// after dispatch_recv. It must end, within its memory, and the next one be right.
func hostileRound(t *testing.T, c worldConfig, seed uint64, before, after []byte) {
	w := newWorld(t, c, seed)
	w.fullTokens()
	w.faults.tamper = func() { w.scribble(0, before) }
	w.poison()
	for _, r := range w.r {
		w.must(r.stream.DispatchSend(&r.send))
	}
	w.sync() // same-node blocks are there too
	if w.deliverDispatch() {
		t.Fatal("overflow")
	}
	for _, r := range w.r {
		w.must(r.stream.DispatchRecv(&r.recv))
	}
	w.sync()
	w.runExperts()
	w.scribble(0, after)
	w.launchCombine()
	rows := w.words(func(r *rank) uint64 { return r.sl.CombineWords })
	limit := w.c.maxTokens
	if w.c.atHome {
		limit *= w.c.topK
	}
	for q := range w.r {
		for s := range w.r {
			if rows[q][s] > limit {
				t.Fatalf("rank %d returns %d rows to rank %d, more than %d", q, rows[q][s], s, limit)
			}
		}
	}
	for _, r := range w.r { // whoever misses rows finds what was there before
		control(r.sl.Control, ctlCombineTxDone).Store(w.round + 1)
		control(r.sl.Control, ctlCombineArrived).Store(w.round + 1)
	}
	w.sync()
	for q := 1; q < len(w.r); q++ {
		if st := w.r[q].status(); st.Code != abi.CodeOK {
			t.Fatalf("rank %d: %+v", q, st)
		}
	}
	w.a.check(t)
	w.round++
	w.faults = faults{}
	w.fullTokens()
	w.runRound()
}

func hostileConfig(seed uint64) worldConfig {
	c := randomConfig(rand.New(rand.NewPCG(seed, 77)))
	c.ranks, c.maxTokens, c.replicas = 3, min(c.maxTokens, 5), 1
	c.windowRows = min(c.windowRows, c.maxTokens)
	c.hidden = min(c.hidden, 20)
	c.direct = nil
	if seed%3 == 0 {
		c.direct = allDirect
	}
	return c
}

func TestHostileBlocks(t *testing.T) {
	n := 300
	if testing.Short() {
		n = 50
	}
	for seed := range uint64(n) {
		r := rand.New(rand.NewPCG(seed, 5))
		b := make([]byte, 2*8*(1+r.IntN(30)))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		c := hostileConfig(seed)
		c.accum = false

		hostileRound(t, c, seed, b[:len(b)/2], b[len(b)/2:])
	}
}

func FuzzHostileBlocks(f *testing.F) {
	f.Add(uint64(1), []byte{0, 3, 0, 0, 255, 255, 255, 255}, []byte{0, 3, 0, 1, 255, 255, 255, 255})
	f.Add(uint64(6), []byte{1, 6, 0, 16, 4, 0, 0, 0, 0, 2, 0, 49, 1, 0, 0, 0}, []byte{})
	f.Fuzz(func(t *testing.T, seed uint64, before, after []byte) {
		c := hostileConfig(seed)
		c.accum = false
		hostileRound(t, c, seed, before, after)
	})
}
