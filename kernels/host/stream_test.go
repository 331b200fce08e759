package host

import (
	"errors"
	"flag"
	"math"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"moerail/kernels/abi"
)

func TestMain(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	if f := flag.Lookup("test.fuzz"); f != nil && f.Value.String() != "" || slices.Contains(os.Args, "-test.fuzzworker") {
		os.Exit(code) // fuzzing keeps goroutines of its own
	}
	// Goroutines that were told to end, also testing's own, may need a turn.
	for start := time.Now(); runtime.NumGoroutine() > before && time.Since(start) < 5*time.Second; {
		runtime.Gosched()
	}
	if n := runtime.NumGoroutine(); code == 0 && n > before {
		buf := make([]byte, 1<<16)
		os.Stderr.Write(buf[:runtime.Stack(buf, true)])
		os.Stderr.WriteString("goroutines are left over\n")
		code = 1
	}
	os.Exit(code)
}

// stuck is two ranks of which rank 0 stands before the wait of a stage, launched
// but without what it waits for.
func stuck(t *testing.T, stage uint32, direct bool) *world {
	c := worldConfig{ranks: 2, experts: 4, topK: 2, hidden: 8, maxTokens: 3}
	if direct {
		c.direct = allDirect
	}
	w := newWorld(t, c, 1)
	w.fullTokens()
	w.runRound()
	r := w.r[0]
	w.fullTokens()
	w.poison()
	switch stage {
	case abi.StageDispatchSend:
		control(r.sl.Control, ctlDispatchTxDone).Store(w.round - 1)
		w.must(r.stream.DispatchSend(&r.send))
	case abi.StageDispatchRecv:
		w.must(r.stream.DispatchSend(&r.send))
		w.must(r.stream.DispatchRecv(&r.recv))
	default:
		w.launchDispatch()
		w.deliverDispatch()
		w.sync()
		if stage == abi.StageCombineSend {
			control(r.sl.Control, ctlCombineTxDone).Store(w.round - 1)
		}
		w.must(r.stream.CombineSend(&r.back))
		if stage == abi.StageCombineRecv {
			w.must(r.stream.CombineRecv(&r.sums))
		}
	}
	return w
}

// rest launches what of the round was not launched.
func (w *world) rest(stage uint32) {
	r := w.r[0]
	if stage < abi.StageDispatchRecv {
		w.must(r.stream.DispatchRecv(&r.recv))
	}
	if stage < abi.StageCombineSend {
		w.must(r.stream.CombineSend(&r.back))
	}
	if stage < abi.StageCombineRecv {
		w.must(r.stream.CombineRecv(&r.sums))
	}
}

// untilParked returns when the stage of rank p that must wait does.
func (w *world) untilParked(p int) {
	for !w.r[p].stream.(*Stream).parked.Load() {
		runtime.Gosched()
	}
}

func TestAbortEndsEveryWait(t *testing.T) {
	for stage := uint32(abi.StageDispatchSend); stage <= abi.StageCombineRecv; stage++ {
		for _, direct := range []bool{false, true} {
			w := stuck(t, stage, direct)
			r := w.r[0]
			s := r.stream.(*Stream)
			w.untilParked(0)
			control(r.sl.Control, ctlAbort).Store(w.round) // the round before: not this one
			r.stream.Notify()
			for range 100 {
				runtime.Gosched()
			}
			if s.done.Load() == s.launched.Load() {
				t.Fatalf("stage %d: the abort of an old round ended it", stage)
			}
			control(r.sl.Control, ctlAbort).Store(w.round + 1)
			r.stream.Notify()
			r.stream.Sync()
			st := r.status()
			if st.Code != abi.CodeAborted || st.Stage != stage || st.Round != w.round {
				t.Fatalf("stage %d: %+v", stage, st)
			}
			late := [abi.MaxRanks / 64]uint64{}
			if stage == abi.StageDispatchRecv || stage == abi.StageCombineRecv {
				late[0] = 1 << 1
			}
			if st.Late != late {
				t.Fatalf("stage %d: late %b", stage, st.Late)
			}
			w.rest(stage)
			r.stream.Sync()
			if got := word(r.sl.Round).Load(); got != w.round+1 {
				t.Fatalf("stage %d: the round is %d after an aborted %d", stage, got, w.round)
			}
			if got := r.status(); got != st {
				t.Fatalf("stage %d: later stages changed the status to %+v", stage, got)
			}
		}
	}
}

func TestLateNamesOnlyWhoIsLate(t *testing.T) {
	w := newWorld(t, worldConfig{ranks: 4, experts: 4, topK: 2, hidden: 8, maxTokens: 3, direct: sameNode2}, 1)
	w.fullTokens()
	w.runRound()
	w.fullTokens()
	for _, p := range []int{0, 1, 2} { // 1 is on rank 0's node
		w.must(w.r[p].stream.DispatchSend(&w.r[p].send))
		w.r[p].stream.Sync()
	}
	sh := &w.r[2].sh
	n := int(sh.SendStride)
	copy(view[byte](w.r[0].sl.Window[w.round&1]+2*sh.WindowStride, n), view[byte](w.r[2].sl.Send, n))
	w.must(w.r[0].stream.DispatchRecv(&w.r[0].recv))
	control(w.r[0].sl.Control, ctlAbort).Store(w.round + 1)
	w.r[0].stream.Sync()
	if st := w.r[0].status(); st.Code != abi.CodeAborted || st.Late[0] != 1<<3 {
		t.Fatalf("%+v: want only rank 3", st)
	}
}

func TestStopAndCloseEndEveryWait(t *testing.T) {
	for stage := uint32(abi.StageDispatchSend); stage <= abi.StageCombineRecv; stage++ {
		for _, stop := range []bool{false, true} {
			w := stuck(t, stage, false)
			r := w.r[0]
			w.untilParked(0) // Close drops what is only queued
			if stop {
				control(r.sl.Control, ctlStop).Store(1)
				r.stream.Notify()
			} else {
				w.must(r.stream.Close())
			}
			r.stream.Sync()
			st := r.status()
			if st.Code != abi.CodeStopped || st.Stage != stage || st.Late != [abi.MaxRanks / 64]uint64{} {
				t.Fatalf("stage %d: %+v", stage, st)
			}
			if got := word(r.sl.Round).Load(); got != w.round {
				t.Fatalf("stage %d: round advanced to %d", stage, got)
			}
		}
	}
}

func TestCloseIsForGoodAndTwice(t *testing.T) {
	w := stuck(t, abi.StageDispatchRecv, false)
	r := w.r[0]
	done := make(chan struct{})
	go func() { r.stream.Sync(); close(done) }()
	go r.stream.Close()
	w.must(r.stream.Close())
	<-done
	if err := r.stream.DispatchSend(&r.send); !errors.Is(err, errClosed) {
		t.Fatalf("launch on a closed stream: %v", err)
	}
	r.stream.Sync()
	r.stream.Notify()
}

// A word that changes without a Notify is seen all the same.
func TestAMissedNotifyIsMadeUpFor(t *testing.T) {
	w := stuck(t, abi.StageDispatchRecv, false)
	w.untilParked(0)
	start := time.Now()
	control(w.r[0].sl.Control, ctlAbort).Store(w.round + 1)
	w.r[0].stream.Sync()
	if d := time.Since(start); d > time.Second {
		t.Fatalf("seen after %v", d)
	}
}

// Params are copied at launch; a full ring makes a launch wait, not fail.
func TestAShortRing(t *testing.T) {
	for _, passive := range []bool{false, true} {
		c := worldConfig{ranks: 2, experts: 4, topK: 2, hidden: 8, maxTokens: 3, device: Config{Queue: 1, Spin: 1, Passive: passive}, direct: allDirect}
		w := newWorld(t, c, 1)
		for range 50 {
			w.fullTokens()
			w.poison()
			for _, r := range w.r {
				p := r.send
				w.must(r.stream.DispatchSend(&p))
				p = abi.DispatchSendParams{}
				if passive {
					r.stream.Sync()
				}
			}
			for _, r := range w.r {
				w.must(r.stream.DispatchRecv(&r.recv))
			}
			w.deliverDispatch()
			w.sync()
			w.checkReceived()
			w.runExperts()
			for _, r := range w.r {
				w.must(r.stream.CombineSend(&r.back))
				r.stream.Sync()
			}
			for _, r := range w.r {
				w.must(r.stream.CombineRecv(&r.sums))
			}
			w.deliverCombine()
			w.sync()
			for p := range w.r {
				w.checkOut(p, make([][]float32, 3))
			}
			w.round++
		}
	}
}

func TestBumpsFollowTheWords(t *testing.T) {
	w := newWorld(t, worldConfig{ranks: 3, experts: 4, topK: 2, hidden: 8, maxTokens: 3}, 1)
	w.fullTokens()
	r := w.r[0]
	var bumps, complete atomic.Int32
	dev, _ := NewDevice(Config{})
	s, err := dev.NewStream(func() {
		bumps.Add(1)
		n := int32(0)
		for q := range w.r {
			if uint32(word(r.sl.DispatchWords+8*uint64(q)).Load()) == 1 {
				n++
			}
		}
		complete.Store(n)
	})
	w.must(err)
	defer s.Close()
	w.must(s.DispatchSend(&r.send))
	s.Sync()
	if bumps.Load() == 0 || complete.Load() != 3 {
		t.Fatalf("%d bumps, the last with %d words written", bumps.Load(), complete.Load())
	}
}

func TestRoundsAllocateNothing(t *testing.T) {
	for name, c := range variants() {
		w := newWorld(t, c, 1)
		w.fullTokens()
		round := func() {
			w.launchDispatchQuietly()
			for _, r := range w.r {
				control(r.sl.Control, ctlDispatchTxDone).Store(w.round + 1)
				control(r.sl.Control, ctlDispatchArrived).Store(w.round + 1)
				r.stream.Notify()
			}
			w.sync()
			for _, r := range w.r {
				w.must(r.stream.CombineSend(&r.back))
				w.must(r.stream.CombineRecv(&r.sums))
			}
			for _, r := range w.r {
				control(r.sl.Control, ctlCombineTxDone).Store(w.round + 1)
				control(r.sl.Control, ctlCombineArrived).Store(w.round + 1)
				r.stream.Notify()
			}
			w.sync()
			w.round++
		}
		for range 3 {
			round()
		}
		if n := testing.AllocsPerRun(20, round); n != 0 {
			t.Errorf("%s: %v allocations per round", name, n)
		}
	}
}

// launchDispatchQuietly also moves the blocks, without an allocation.
func (w *world) launchDispatchQuietly() {
	for _, r := range w.r {
		w.must(r.stream.DispatchSend(&r.send))
	}
	w.sync()
	for p, src := range w.r {
		for q, dst := range w.r {
			if w.isRemote(p, q) {
				n := int(src.sh.WindowStride)
				copy(view[byte](dst.sl.Window[w.round&1]+uint64(p)*src.sh.WindowStride, n), view[byte](src.sl.Send+uint64(q)*src.sh.SendStride, n))
			}
		}
	}
	for _, r := range w.r {
		w.must(r.stream.DispatchRecv(&r.recv))
	}
}

func TestConfigLimits(t *testing.T) {
	for _, c := range []Config{{Queue: -1}, {Queue: MaxQueue + 1}, {Spin: -1}, {Spin: MaxSpin + 1}} {
		if _, err := NewDevice(c); err == nil {
			t.Errorf("%+v: no error", c)
		}
	}
	_, err := NewDevice(Config{Queue: -1, Spin: -1})
	if err == nil || !strings.Contains(err.Error(), "Queue") || !strings.Contains(err.Error(), "Spin") {
		t.Errorf("want both faults, got %v", err)
	}
}

// Every field of Shape, set to values that cannot be right, must be refused or do
// no harm, and every address that a stage needs must be missed.
func TestParamsAreChecked(t *testing.T) {
	w := newWorld(t, variants()["grouped"], 1)
	r := w.r[1]
	launch := func(sh abi.Shape, sl abi.Slot) (errs []error) {
		a, b, c, d := r.send, r.recv, r.back, r.sums
		a.NumTokens = 2
		a.Shape, b.Shape, c.Shape, d.Shape = sh, sh, sh, sh
		a.Slot, b.Slot, c.Slot, d.Slot = sl, sl, sl, sl
		return []error{checkDispatchSend(&a), checkDispatchRecv(&b), checkCombineSend(&c), checkCombineRecv(&d)}
	}
	for _, err := range launch(r.sh, r.sl) {
		if err != nil {
			t.Fatal(err)
		}
	}
	refused := func(name string, v uint64, sh abi.Shape) {
		for i, err := range launch(sh, r.sl) {
			if !errors.Is(err, ErrParams) {
				t.Errorf("stage %d: %s = %d was accepted: %v", i+1, name, v, err)
			}
		}
	}
	huge := map[string]bool{"MaxRecvRows": true, "ExpertCapacity": true, "WindowRows": true, "Generation": true, "ScaleBlock": true,
		"ReduceAtHome": true, "ApplyWeights": true}
	for i := range reflect.TypeOf(r.sh).NumField() {
		f := reflect.TypeOf(r.sh).Field(i)
		if f.Name == "_" || huge[f.Name] {
			continue
		}
		sh := r.sh
		v := reflect.ValueOf(&sh).Elem().Field(i)
		v.SetUint(math.MaxUint64 >> (64 - f.Type.Bits()))
		refused(f.Name, v.Uint(), sh)
	}
	for _, name := range []string{"NumRanks", "NumExperts", "MaxLocalExperts", "TopK", "Hidden", "Replicas", "ExpertAlignment", "RowBytes",
		"MetaOffset", "ScaleOffset", "HeaderBytes", "InRowBytes", "PayloadBytes", "OutRowBytes", "ReturnRowBytes", "WindowStride", "SendStride", "ReturnStride", "ReturnSendStride"} {
		sh := r.sh
		reflect.ValueOf(&sh).Elem().FieldByName(name).SetUint(0)
		refused(name, 0, sh)
	}
	sh := r.sh
	sh.Replicas = 3
	refused("Replicas", 3, sh)
	sh = r.sh
	sh.Wire, sh.PayloadBytes = abi.FP8, sh.Hidden // without ScaleBlock
	refused("ScaleBlock", 0, sh)
	for _, name := range []string{"Control", "Status", "Round", "Send", "ReturnRows", "ReturnWindow", "Tokens", "Home"} {
		for _, bad := range []uint64{0, 3} {
			sl := r.sl
			reflect.ValueOf(&sl).Elem().FieldByName(name).SetUint(bad)
			for i, err := range launch(r.sh, sl) {
				if !errors.Is(err, ErrParams) || !strings.Contains(err.Error(), name) {
					t.Errorf("stage %d: %s at %d: %v", i+1, name, bad, err)
				}
			}
		}
	}
	for i, err := range []error{checkDispatchSend(nil), checkDispatchRecv(nil), checkCombineSend(nil), checkCombineRecv(nil)} {
		if !errors.Is(err, ErrParams) {
			t.Errorf("stage %d: nil params: %v", i+1, err)
		}
	}
	p := r.send
	p.NumTokens, p.X, p.IDs = 0, 0, 0 // a rank without tokens has no data
	if err := checkDispatchSend(&p); err != nil {
		t.Error(err)
	}
	p.NumTokens = 1
	if err := checkDispatchSend(&p); !errors.Is(err, ErrParams) {
		t.Errorf("tokens without data: %v", err)
	}
}
