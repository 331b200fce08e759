package host

import (
	"testing"

	"moerail/kernels/abi"
)

// dispatchOnly runs dispatch with the blocks tampered with.
func (w *world) dispatchOnly(tamper func()) {
	w.faults = faults{tamper: tamper}
	w.poison()
	w.launchDispatch()
	w.deliverDispatch()
	w.sync()
}

// Rows that together have more picks than their header counted would push the
// numbering of expert outputs beyond the buffer (rows layout).
func TestRowsCannotHaveMorePicksThanTheirHeader(t *testing.T) {
	c := variants()["rows"]
	w := newWorld(t, c, 1)
	for p := range w.r {
		ids := make([]int64, 3*c.topK)
		for i := range ids {
			ids[i] = -1
			if i%c.topK == 0 {
				ids[i] = 0 // one pick a row, all for expert 0
			}
		}
		w.setTokens(p, 3, ids)
	}
	q := w.place[0]
	p := (q + 1) % 4
	w.dispatchOnly(func() {
		sh := &w.r[q].sh
		for i := range uint64(3) {
			row := w.r[q].sl.Window[0] + uint64(p)*sh.WindowStride + uint64(sh.HeaderBytes) + i*uint64(sh.RowBytes)
			m := view[uint32](row+uint64(sh.MetaOffset), 2+3*c.topK)
			m[1] = uint32(c.topK)
			for j := range c.topK {
				m[2+3*j], m[3+3*j] = 0, 0
			}
		}
	})
	if st := w.r[q].status(); st.Code != abi.CodeBadRow || int(st.Peer) != p || st.Token != 1 {
		t.Fatalf("%+v", st)
	}
	if n := view[uint32](w.r[q].recv.NumRows, 2); n[0] != 12 || n[1] != 12 {
		t.Fatalf("%v rows and picks, want 12 and 12: nine of the others, three of rank %d's first row", n, p)
	}
}

func TestRowsFromAnotherLaneAreRefused(t *testing.T) {
	w := newWorld(t, variants()["replicas"], 1)
	w.fullTokens()
	w.dispatchOnly(func() { // rank 3 is of lane 1, rank 0 of lane 0
		h := w.header(3, 0)
		h[3], h[6] = 1, 1
	})
	if st := w.r[0].status(); st.Code != abi.CodeBadHeader || st.Peer != 3 || st.Value != 1 || st.Limit != 0 {
		t.Fatalf("%+v", st)
	}
}

// Starts lies where the caller can write. Altered, it must not lead out of Y.
func TestAlteredStartsStayInsideY(t *testing.T) {
	for _, v := range []int32{1 << 30, -1, -1 << 31} {
		w := newWorld(t, variants()["grouped"], 1)
		w.fullTokens()
		w.dispatchOnly(nil)
		r := w.r[0]
		starts := view[int32](r.recv.Starts, int(r.sh.NumLocalExperts)+1)
		for i := range starts {
			starts[i] = v
		}
		w.launchCombine()
		w.deliverCombine()
		w.sync()
		if st := r.status(); st.Code != abi.CodeBadRow || st.Stage != abi.StageCombineSend {
			t.Fatalf("%+v", st)
		}
	}
}

// Two communicators of different shape may share a stream: scratch of one must not
// show in the other.
func TestShapesMayAlternateOnAStream(t *testing.T) {
	big := worldConfig{ranks: 3, experts: 9, topK: 4, hidden: 40, maxTokens: 7, in: abi.FP32, wire: abi.FP8, scaleBlock: 7, out: abi.FP16}
	small := worldConfig{ranks: 2, experts: 2, topK: 1, hidden: 5, maxTokens: 7, in: abi.BF16, wire: abi.FP8, scaleBlock: 3, out: abi.BF16}
	a, b := newWorld(t, big, 1), newWorld(t, small, 2)
	for i, r := range b.r {
		r.stream.Close()
		r.stream = a.r[i].stream
	}
	for range 4 {
		a.randomTokens()
		a.runRound()
		b.randomTokens()
		b.runRound()
	}
}
