// Package transporttest is the conformance suite of the transport contract.
// Every provider runs it, in every mode it has:
//
//	func TestConformance(t *testing.T) {
//		transporttest.Run(t, transporttest.Harness{Open: ..., Alloc: ..., NICs: 2})
//	}
//
// The suite is written against the contract alone: it never assumes an order
// between operations, nor that a local completion means the target has seen
// anything. What a domain's Limits deny is skipped, and the skip names it.
package transporttest

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"moerail/transport"
)

// Harness is what a provider lends to the suite.
type Harness struct {
	// Open opens NIC nic (0 to NICs-1) for a rank of the test's own fabric. The
	// suite opens up to 8 ranks, and closes what it opens.
	Open func(t testing.TB, rank, nic int, cfg transport.DomainConfig) transport.Domain
	// Alloc returns zeroed memory that any of these domains can register, and
	// frees it when the test is over.
	Alloc func(t testing.TB, size uint64) transport.Memory
	// NICs is how many NICs a rank may open; 1 if 0.
	NICs int
	// Idle, if not nil, is called when polling every domain brought nothing: a
	// virtual clock moves on here. It must be safe for concurrent use.
	Idle func()
	// MaxBytes bounds the payloads tried; 64 MiB if 0.
	MaxBytes uint64

	// Patience is how long to wait for what must happen; 30 s if 0. Fabrics of an
	// emulated machine need more.
	Patience time.Duration

	// Reasons for not testing a thing that Limits do not tell; they appear in
	// the skip. Empty means that it is tested.
	Allocates      string // Post or Poll may allocate
	NoRemoteErrors string // a target's refusal is not reported to the sender
	Approximate    string // Stats do not count exactly
}

// patience is how long the suite waits for what must happen, unless the harness
// says otherwise.
const patience = 30 * time.Second

func (h Harness) patience() time.Duration {
	if h.Patience > 0 {
		return h.Patience
	}
	return patience
}

// world is a few ranks, moved by one thread.
type world struct {
	t     testing.TB
	h     Harness
	ranks []*rank
}

// rank is one domain with one region, and what its polls have brought.
type rank struct {
	transport.Domain
	w      *world
	mem    transport.Memory
	region transport.Region
	peers  []transport.Peer   // by rank
	remote []transport.Remote // of the other ranks' regions
	imms   []transport.Completion
	recvs  []transport.Completion
	ends   []transport.Completion
	out    [16]transport.Completion
}

const pageBytes = 4096

// newWorld opens n ranks, each with a region of size bytes, all joined.
func newWorld(t testing.TB, h Harness, n int, size uint64, cfg transport.DomainConfig) *world {
	t.Helper()
	w := &world{t: t, h: h}
	for i := range n {
		w.add(h.Open(t, i, 0, cfg), size)
	}
	w.join()
	return w
}

// add makes a domain, with a region of its own, the next rank.
func (w *world) add(d transport.Domain, size uint64) *rank {
	w.t.Helper()
	r := &rank{Domain: d, w: w, mem: w.h.Alloc(w.t, size)}
	w.t.Cleanup(func() { d.Close() })
	var err error
	if r.region, err = d.Register(r.mem, transport.AccessAll); err != nil {
		w.t.Fatalf("register %d bytes: %v", size, err)
	}
	w.ranks = append(w.ranks, r)
	return r
}

// join adds everybody to everybody.
func (w *world) join() {
	w.t.Helper()
	for _, r := range w.ranks {
		r.peers, r.remote = nil, nil
		for _, o := range w.ranks {
			p, m := r.know(o)
			r.peers, r.remote = append(r.peers, p), append(r.remote, m)
		}
	}
}

// know adds o as a peer of r and imports its region.
func (r *rank) know(o *rank) (transport.Peer, transport.Remote) {
	r.w.t.Helper()
	p, err := r.AddPeer(o.Addr())
	if err != nil {
		r.w.t.Fatalf("add peer: %v", err)
	}
	m, err := r.Import(p, o.region.RemoteKey(), o.region.Size())
	if err != nil {
		r.w.t.Fatalf("import: %v", err)
	}
	return p, m
}

// poll polls r once and sorts what comes.
func (r *rank) poll() int {
	r.w.t.Helper()
	n, err := r.Poll(r.out[:])
	if err != nil {
		if errors.Is(err, transport.ErrClosed) {
			return 0
		}
		r.w.t.Fatalf("poll: %v", err)
	}
	for _, c := range r.out[:n] {
		switch c.Op {
		case transport.OpImm:
			r.imms = append(r.imms, c)
		case transport.OpRecv:
			r.recvs = append(r.recvs, c)
		default:
			r.ends = append(r.ends, c)
		}
	}
	return n
}

// pump polls every rank once.
func (w *world) pump() {
	w.t.Helper()
	n := 0
	for _, r := range w.ranks {
		n += r.poll()
	}
	if n == 0 {
		w.idle()
	}
}

func (w *world) idle() {
	if w.h.Idle != nil {
		w.h.Idle()
	}
	runtime.Gosched()
}

// until polls everybody until cond holds.
func (w *world) until(what string, cond func() bool) {
	w.t.Helper()
	for start := time.Now(); !cond(); w.pump() {
		if time.Since(start) > w.h.patience() {
			w.t.Fatalf("%s: not within %v", what, w.h.patience())
		}
	}
}

// settle polls on for a while after everything awaited has come, so that what
// must not come has its chance.
func (w *world) settle() {
	w.t.Helper()
	for range 200 {
		w.pump()
	}
}

// post posts wrs, polling when a queue is full.
func (r *rank) post(wrs ...transport.WorkRequest) {
	r.w.t.Helper()
	for start := time.Now(); len(wrs) > 0; {
		n, err := r.Post(wrs)
		if err != nil && !errors.Is(err, transport.ErrAgain) {
			r.w.t.Fatalf("post %v: %v", wrs[n].Op, err)
		}
		if err == nil && n != len(wrs) {
			r.w.t.Fatalf("post took %d of %d without an error", n, len(wrs))
		}
		if wrs = wrs[n:]; len(wrs) > 0 {
			r.w.pump()
		}
		if time.Since(start) > r.w.h.patience() {
			r.w.t.Fatalf("post: queue full for %v", r.w.h.patience())
		}
	}
}

// end waits for the next completion of r's own and forgets it.
func (r *rank) end() transport.Completion {
	r.w.t.Helper()
	r.w.until("completion", func() bool { return len(r.ends) > 0 })
	c := r.ends[0]
	r.ends = r.ends[1:]
	return c
}

// ok waits for the end of request id, which must be the next and a success.
func (r *rank) ok(id transport.WRID, op transport.Opcode, peer transport.Peer, bytes uint64) {
	r.w.t.Helper()
	want := transport.Completion{ID: id, Op: op, Peer: peer, Bytes: bytes}
	if c := r.end(); c != want {
		r.w.t.Fatalf("completion %+v, want %+v", c, want)
	}
}

// imm waits for the next immediate and forgets it.
func (r *rank) imm() transport.Completion {
	r.w.t.Helper()
	r.w.until("immediate", func() bool { return len(r.imms) > 0 })
	c := r.imms[0]
	r.imms = r.imms[1:]
	if c.Status != transport.StatusOK {
		r.w.t.Fatalf("immediate %#x arrived with status %v", c.Imm, c.Status)
	}
	return c
}

// write is a write from r to rank o, from and to the same offset.
func (r *rank) write(o int, off, n uint64) transport.WorkRequest {
	return transport.WorkRequest{Op: transport.OpWrite, Peer: r.peers[o], Local: r.region.LKey(), Remote: r.remote[o],
		LocalOff: off, RemoteOff: off, Len: n}
}

func (r *rank) writeImm(o int, off, n uint64, imm transport.Imm) transport.WorkRequest {
	wr := r.write(o, off, n)
	wr.Op, wr.Imm = transport.OpWriteImm, imm
	return wr
}

// fill writes a pattern that depends on seed; same tells whether b holds it.
func fill(b []byte, seed int) {
	for i := range b {
		b[i] = pattern(i, seed)
	}
}

func pattern(i, seed int) byte { return byte(i*7+i>>8*13+seed*31) | 1 }

func same(b []byte, seed int) error {
	for i, v := range b {
		if v != pattern(i, seed) {
			return fmt.Errorf("byte %d of %d is %#x, want %#x", i, len(b), v, pattern(i, seed))
		}
	}
	return nil
}

func untouched(b []byte) error {
	if i := bytes.IndexFunc(b, func(r rune) bool { return r != 0 }); i >= 0 {
		return fmt.Errorf("byte %d of %d was written", i, len(b))
	}
	return nil
}

func (h Harness) needImm(t testing.TB, d transport.Domain) {
	t.Helper()
	if d.Limits().ImmBytes == 0 {
		t.Skip("the provider's writes carry no immediates (Limits.ImmBytes is 0)")
	}
}

func (h Harness) needRead(t testing.TB, d transport.Domain) {
	t.Helper()
	if !d.Limits().Read {
		t.Skip("the provider has no reads (Limits.Read)")
	}
}

func (h Harness) needAtomic(t testing.TB, d transport.Domain) {
	t.Helper()
	if !d.Limits().Atomic {
		t.Skip("the provider has no atomics (Limits.Atomic)")
	}
}

func (h Harness) needRemoteErrors(t testing.TB) {
	t.Helper()
	if h.NoRemoteErrors != "" {
		t.Skip("a target's refusal is not reported: " + h.NoRemoteErrors)
	}
}
