package transporttest

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"moerail/transport"
)

// testScatter sends a different piece of one buffer to each of seven peers.
func testScatter(t *testing.T, h Harness) {
	const ranks, slot, rounds = 8, 512, 20
	w := newWorld(t, h, ranks, ranks*slot, transport.DomainConfig{})
	a := w.ranks[0]
	h.needImm(t, a)
	tp := a.template(1, 2, 3, 4, 5, 6, 7)
	for round := range rounds {
		var ops []transport.ScatterOp
		for e := range ranks - 1 {
			fill(a.mem.Host[(e+1)*slot:(e+2)*slot], round*8+e)
			ops = append(ops, transport.ScatterOp{Entry: int32(e), Imm: transport.Imm(round<<8 | e),
				LocalOff: uint64((e + 1) * slot), RemoteOff: uint64(round % ranks * slot), Len: uint64(slot - e)})
		}
		ops[3].NoImm = true
		a.scatter(tp, transport.WRID(round), ops)
		for i, r := range w.ranks[1:] {
			at := round % ranks * slot
			got := r.mem.Host[at : at+slot-i]
			if ops[i].NoImm {
				w.until("plain scatter", func() bool { return same(got, round*8+i) == nil })
				continue
			}
			if c := r.imm(); c.Imm != ops[i].Imm {
				t.Fatalf("rank %d got immediate %#x, want %#x", i+1, c.Imm, ops[i].Imm)
			}
			if err := same(got, round*8+i); err != nil {
				t.Fatalf("round %d, rank %d: %v", round, i+1, err)
			}
		}
		ends := make(map[transport.Peer]transport.Completion)
		for range ops {
			c := a.end()
			ends[c.Peer] = c
		}
		for i, op := range ops {
			want := transport.Completion{ID: transport.WRID(round), Op: transport.OpWriteImm, Peer: a.peers[i+1], Bytes: op.Len}
			if op.NoImm {
				want.Op = transport.OpWrite
			}
			if ends[a.peers[i+1]] != want {
				t.Fatalf("round %d: completion %+v, want %+v", round, ends[a.peers[i+1]], want)
			}
		}
	}
	if err := a.FreeTemplate(tp); err != nil {
		t.Fatal(err)
	}
	if n, err := a.PostScatter(tp, 0, []transport.ScatterOp{{}}); n != 0 || !errors.Is(err, transport.ErrBadHandle) {
		t.Errorf("a freed template: %d, %v", n, err)
	}
}

func (r *rank) template(ranks ...int) transport.Template {
	r.w.t.Helper()
	var es []transport.TemplateEntry
	for _, o := range ranks {
		es = append(es, transport.TemplateEntry{Peer: r.peers[o], Local: r.region.LKey(), Remote: r.remote[o]})
	}
	tp, err := r.NewTemplate(es)
	if err != nil {
		r.w.t.Fatalf("template: %v", err)
	}
	return tp
}

func (r *rank) scatter(tp transport.Template, id transport.WRID, ops []transport.ScatterOp) {
	r.w.t.Helper()
	for start := time.Now(); len(ops) > 0; {
		n, err := r.PostScatter(tp, id, ops)
		if err != nil && !errors.Is(err, transport.ErrAgain) {
			r.w.t.Fatalf("scatter: %v", err)
		}
		if ops = ops[n:]; len(ops) > 0 {
			r.w.pump()
		}
		if time.Since(start) > r.w.h.patience() {
			r.w.t.Fatalf("scatter: queue full for %v", r.w.h.patience())
		}
	}
}

func testScatterRefused(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, pageBytes, transport.DomainConfig{})
	a, b := w.ranks[0], w.ranks[1]
	tp := a.template(1, 2)
	good := transport.ScatterOp{Entry: 0, NoImm: true, Len: 64}
	for name, c := range map[string]struct {
		op   transport.ScatterOp
		want error
	}{
		"entry -1":      {transport.ScatterOp{Entry: -1, NoImm: true}, transport.ErrBadHandle},
		"entry 2 of 2":  {transport.ScatterOp{Entry: 2, NoImm: true}, transport.ErrBadHandle},
		"local end+1":   {transport.ScatterOp{NoImm: true, LocalOff: pageBytes - 7, Len: 8}, transport.ErrOutOfRange},
		"remote end+1":  {transport.ScatterOp{NoImm: true, RemoteOff: pageBytes - 7, Len: 8}, transport.ErrOutOfRange},
		"offset wraps":  {transport.ScatterOp{NoImm: true, RemoteOff: ^uint64(0) - 3, Len: 8}, transport.ErrOutOfRange},
		"length wraps":  {transport.ScatterOp{NoImm: true, LocalOff: 8, Len: ^uint64(0) - 3}, transport.ErrOutOfRange},
		"empty outside": {transport.ScatterOp{NoImm: true, RemoteOff: pageBytes + 1}, transport.ErrOutOfRange},
	} {
		// The good one before it is taken, the bad one and the rest are not.
		n, err := a.PostScatter(tp, 1, []transport.ScatterOp{good, c.op, good})
		if n != 1 || !errors.Is(err, c.want) {
			t.Errorf("%s: took %d, %v; want 1 and %v", name, n, err, c.want)
		}
		if end := a.end(); end.Status != transport.StatusOK {
			t.Errorf("%s: the request before ended as %+v", name, end)
		}
	}
	for name, e := range map[string]transport.TemplateEntry{
		"foreign peer":           {Peer: b.peers[2], Local: a.region.LKey(), Remote: a.remote[1]},
		"foreign local":          {Peer: a.peers[1], Local: b.region.LKey(), Remote: a.remote[1]},
		"foreign remote":         {Peer: a.peers[1], Local: a.region.LKey(), Remote: b.remote[2]},
		"remote of another peer": {Peer: a.peers[1], Local: a.region.LKey(), Remote: a.remote[2]},
	} {
		if tp, err := a.NewTemplate([]transport.TemplateEntry{e}); !errors.Is(err, transport.ErrBadHandle) {
			t.Errorf("template with %s: %v, %v", name, tp, err)
		}
	}
	if n, err := b.PostScatter(tp, 0, []transport.ScatterOp{good}); n != 0 || !errors.Is(err, transport.ErrBadHandle) {
		t.Errorf("another domain's template: %d, %v", n, err)
	}
	if err := a.region.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := a.PostScatter(tp, 0, []transport.ScatterOp{good}); n != 0 || !errors.Is(err, transport.ErrBadHandle) {
		t.Errorf("a template over a closed local region: %d, %v", n, err)
	}
	w.settle()
	if len(a.ends) > 0 {
		t.Errorf("refused requests completed: %v", a.ends)
	}
}

// testTwoSlots posts 10 000 writes in both directions from one thread over
// queues of two: whoever waits without polling never ends.
func testTwoSlots(t *testing.T, h Harness) {
	const writes = 10000
	w := newWorld(t, h, 2, pageBytes, transport.DomainConfig{MaxSend: 2})
	h.needImm(t, w.ranks[0])
	var sent, ended, got [2]int
	w.until("both directions", func() bool {
		for i, r := range w.ranks {
			for sent[i] < writes {
				n, err := r.Post([]transport.WorkRequest{r.writeImm(1-i, uint64(sent[i]%64*8), 8, transport.Imm(sent[i]))})
				if errors.Is(err, transport.ErrAgain) && n == 0 {
					break
				}
				if err != nil || n != 1 {
					t.Fatalf("write %d: %d, %v", sent[i], n, err)
				}
				sent[i]++
			}
			for _, c := range r.ends {
				if c.Status != transport.StatusOK {
					t.Fatalf("write ended as %+v", c)
				}
			}
			ended[i] += len(r.ends)
			got[i] += len(r.imms)
			r.ends, r.imms = r.ends[:0], r.imms[:0]
			if sent[i]-ended[i] > r.Limits().MaxSend {
				t.Fatalf("%d writes in flight, the limit is %d", sent[i]-ended[i], r.Limits().MaxSend)
			}
		}
		return ended == [2]int{writes, writes} && got == ended
	})
	if w.ranks[0].Limits().MaxSend < writes && w.ranks[0].Stats().Again == 0 {
		t.Error("no post was told ErrAgain")
	}
}

// testOneReceive sends a burst of immediates at a domain with one receive.
func testOneReceive(t *testing.T, h Harness) {
	const burst = 64
	w := newWorld(t, h, 1, pageBytes, transport.DomainConfig{})
	w.add(h.Open(t, 1, 0, transport.DomainConfig{MaxRecv: 1}), pageBytes)
	w.join()
	a, b := w.ranks[0], w.ranks[1]
	h.needImm(t, a)
	var wrs []transport.WorkRequest
	for i := range burst {
		wrs = append(wrs, a.writeImm(1, uint64(i*8), 8, transport.Imm(i)))
	}
	a.post(wrs...)
	var seen [burst]bool
	for range burst {
		c := b.imm()
		if c.Imm >= burst || seen[c.Imm] {
			t.Fatalf("immediate %d came twice, or was never sent", c.Imm)
		}
		seen[c.Imm] = true
	}
	for range burst {
		if c := a.end(); c.Status != transport.StatusOK {
			t.Fatalf("write ended as %+v", c)
		}
	}
}

// testConcurrentRanks gives each of four domains a goroutine, all writing to
// all, and looks at each payload when its immediate is polled. Under the race
// detector this also checks that the hand-over is one.
func testConcurrentRanks(t *testing.T, h Harness) {
	const ranks, writes, slot = 4, 200, 64
	w := newWorld(t, h, ranks, 2*ranks*writes*slot, transport.DomainConfig{MaxSend: 32})
	h.needImm(t, w.ranks[0])
	errs := make([]error, ranks)
	var wg sync.WaitGroup
	var arrived sync.WaitGroup // everybody keeps polling until all have got all
	arrived.Add(ranks)
	all := make(chan struct{})
	go func() { arrived.Wait(); close(all) }()
	for i, r := range w.ranks {
		wg.Add(1)
		go func() {
			defer wg.Done()
			errs[i] = r.trade(i, ranks, writes, slot, arrived.Done, all)
		}()
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// trade writes to every other rank and receives as much. Slots for sending come
// after those for receiving; the immediate names the slot.
func (r *rank) trade(me, ranks, writes, slot int, done func(), all <-chan struct{}) error {
	notified := false
	defer func() {
		if !notified {
			done()
		}
	}()
	out := make([]transport.Completion, 8)
	sent, ended, got := 0, 0, 0
	want := (ranks - 1) * writes // both ways
	for start := time.Now(); ; {
		if got == want && ended == want && !notified {
			notified = true
			done()
		}
		if notified {
			select {
			case <-all:
				return nil
			default:
			}
		}
		for sent < want {
			to := (me + 1 + sent%(ranks-1)) % ranks
			k := me*writes + sent/(ranks-1)
			wr := r.writeImm(to, uint64(k*slot), uint64(slot), transport.Imm(k))
			wr.LocalOff = uint64((ranks*writes + sent) * slot)
			fill(r.mem.Host[wr.LocalOff:wr.LocalOff+wr.Len], k+to)
			n, err := r.Post([]transport.WorkRequest{wr})
			if n == 0 && errors.Is(err, transport.ErrAgain) {
				break
			}
			if err != nil {
				return fmt.Errorf("rank %d, write %d: %w", me, sent, err)
			}
			sent++
		}
		n, err := r.Poll(out)
		if err != nil {
			return fmt.Errorf("rank %d: poll: %w", me, err)
		}
		for _, c := range out[:n] {
			if c.Status != transport.StatusOK {
				return fmt.Errorf("rank %d: completion %+v", me, c)
			}
			if c.Op != transport.OpImm {
				ended++
				continue
			}
			got++
			at := int(c.Imm) * slot
			if err := same(r.mem.Host[at:at+slot], int(c.Imm)+me); err != nil {
				return fmt.Errorf("rank %d, slot %d: %w", me, c.Imm, err)
			}
		}
		if n == 0 {
			if time.Since(start) > r.w.h.patience() {
				return fmt.Errorf("rank %d: %d of %d writes ended and %d came within %v", me, ended, want, got, r.w.h.patience())
			}
			if r.w.h.Idle != nil {
				r.w.h.Idle()
			}
			runtime.Gosched()
		}
	}
}
