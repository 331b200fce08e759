package host

import (
	"bytes"
	"runtime"
	"testing"

	"moerail/kernels/abi"
)

// TestSendBuffersAreAwaited: a stage that writes what the NIC reads does not touch
// it, nor says that it has, before the proxy has seen the last use complete.
func TestSendBuffersAreAwaited(t *testing.T) {
	for _, combine := range []bool{false, true} {
		w := newWorld(t, worldConfig{ranks: 3, experts: 6, topK: 3, hidden: 20, maxTokens: 6, in: abi.FP32, wire: abi.FP32, out: abi.FP32}, 5)
		w.randomTokens()
		w.runRound()
		w.randomTokens()
		r := w.r[1]
		s := r.stream.(*Stream)
		done, words, buffer := ctlDispatchTxDone, r.sl.DispatchWords, view[byte](r.sl.Send, 3*int(r.sh.SendStride))
		launch := func() error { return r.stream.DispatchSend(&r.send) }
		if combine {
			w.launchDispatch()
			w.deliverDispatch()
			w.sync()
			w.runExperts()
			done, words, buffer = ctlCombineTxDone, r.sl.CombineWords, view[byte](r.sl.ReturnSend, 3*int(r.sh.ReturnSendStride))
			launch = func() error { return r.stream.CombineSend(&r.back) }
		}
		control(r.sl.Control, done).Store(w.round - 1)
		before := bytes.Clone(buffer)
		w.must(launch())
		for s.done.Load() < s.launched.Load() && !s.parked.Load() {
			runtime.Gosched()
		}
		for range 100 {
			runtime.Gosched()
		}
		if s.done.Load() == s.launched.Load() || !bytes.Equal(buffer, before) {
			t.Fatalf("combine %v: the buffer was written while the NIC may read it", combine)
		}
		for q := range w.r {
			if v := word(words + 8*uint64(q)).Load(); uint32(v) == uint32(w.round+1) {
				t.Fatalf("combine %v: word %d says that its block is made", combine, q)
			}
		}
		control(r.sl.Control, done).Store(w.round)
		r.stream.Notify()
		r.stream.Sync()
		if st := r.status(); st.Code != abi.CodeOK {
			t.Fatalf("combine %v: %+v", combine, st)
		}
		for q := range w.r {
			if v := word(words + 8*uint64(q)).Load(); uint32(v) != uint32(w.round+1) {
				t.Fatalf("combine %v: word %d is %#x in round %d", combine, q, v, w.round)
			}
		}
	}
}

// TestAnEarlierRoundsFlagIsNoFlag: the flag that a direct rank set two rounds ago,
// in the same word, does not announce its block of this round.
func TestAnEarlierRoundsFlagIsNoFlag(t *testing.T) {
	w := newWorld(t, worldConfig{ranks: 3, experts: 6, topK: 3, hidden: 20, maxTokens: 6, in: abi.FP32, wire: abi.FP32, out: abi.FP32, direct: allDirect}, 5)
	for range 2 {
		w.randomTokens()
		w.runRound()
	}
	w.randomTokens()
	r := w.r[1]
	s := r.stream.(*Stream)
	w.must(r.stream.DispatchSend(&r.send))
	w.must(r.stream.DispatchRecv(&r.recv))
	for s.done.Load() < s.launched.Load() && !s.parked.Load() {
		runtime.Gosched()
	}
	for range 100 {
		runtime.Gosched()
	}
	if s.done.Load() == s.launched.Load() {
		t.Fatalf("round %d was received before the others had sent it: %+v", w.round, r.status())
	}
	for _, p := range []int{0, 2} {
		w.must(w.r[p].stream.DispatchSend(&w.r[p].send))
		w.must(w.r[p].stream.DispatchRecv(&w.r[p].recv))
	}
	for _, r := range w.r {
		r.stream.Notify()
	}
	w.sync()
	w.checkCodes()
	w.checkReceived()
}
