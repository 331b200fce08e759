package engine

import (
	"encoding/binary"
	"fmt"
	"math/rand"
	"sync"
	"sync/atomic"

	"moerail/internal/mem"
	"moerail/transport"
)

// fakeNet is the least fabric that the contract allows: operations are carried
// out in random order, when their sender polls, and complete when done. Tests
// hold it, fail single operations, and make domains misbehave.
type fakeNet struct {
	mu     sync.Mutex
	rng    *rand.Rand
	doms   map[string]*fakeDomain
	hold   bool                                             // nothing is carried out
	fail   func(d *fakeDomain, op *fakeOp) transport.Status // StatusOK carries it out
	allow  func(d *fakeDomain, op *fakeOp) bool             // false leaves it in flight
	allocs atomic.Int64
}

func newFakeNet(seed int64) *fakeNet {
	return &fakeNet{rng: rand.New(rand.NewSource(seed)), doms: map[string]*fakeDomain{}}
}

func (f *fakeNet) Name() string          { return "fake" }
func (f *fakeNet) NICs() []transport.NIC { return nil }
func (f *fakeNet) Alloc(n uint64) (transport.Memory, error) {
	f.allocs.Add(1)
	return mem.Alloc(n)
}
func (f *fakeNet) Free(m transport.Memory) error {
	f.allocs.Add(-1)
	return mem.Free(m)
}
func (f *fakeNet) Open(string, transport.DomainConfig) (transport.Domain, error) {
	return nil, transport.ErrUnsupported
}

func (f *fakeNet) set(fn func()) {
	f.mu.Lock()
	fn()
	var wakes []func()
	for _, d := range f.doms {
		if d.wake != nil {
			wakes = append(wakes, d.wake)
		}
	}
	f.mu.Unlock()
	for _, w := range wakes {
		w()
	}
}

type fakeOp struct {
	wr transport.WorkRequest
}

type fakeRegion struct {
	d      *fakeDomain
	key    transport.LKey
	m      transport.Memory
	access transport.Access
	closed bool
}

func (r *fakeRegion) LKey() transport.LKey { return r.key }
func (r *fakeRegion) Size() uint64         { return r.m.Size }
func (r *fakeRegion) RemoteKey() transport.RemoteKey {
	return binary.LittleEndian.AppendUint32([]byte(r.d.addr), uint32(r.key))
}
func (r *fakeRegion) Close() error {
	r.d.net.mu.Lock()
	defer r.d.net.mu.Unlock()
	r.closed = true
	return nil
}

type fakeRemote struct {
	peer     transport.Peer
	key      uint32
	size     uint64
	released bool
}

type fakeDomain struct {
	net       *fakeNet
	addr      string
	limits    transport.Limits
	wake      func()
	regions   []*fakeRegion
	peers     []string
	remotes   []*fakeRemote
	templates [][]transport.TemplateEntry
	inflight  []fakeOp
	comps     []transport.Completion
	recvs     []transport.RecvRequest
	closed    bool
	postErr   error // every Post is refused
	pollErr   error
	posts     atomic.Uint64
	stats     transport.Stats
}

func (f *fakeNet) domain(addr string, depth int) *fakeDomain {
	d := &fakeDomain{net: f, addr: addr, limits: transport.Limits{
		MaxSend: depth, MaxRecv: 64, MaxRecvSize: 1 << 16, ImmBytes: 4, Read: true, Atomic: true,
	}}
	f.mu.Lock()
	f.doms[addr] = d
	f.mu.Unlock()
	return d
}

func (d *fakeDomain) Name() string             { return d.addr }
func (d *fakeDomain) Addr() transport.Address  { return transport.Address(d.addr) }
func (d *fakeDomain) Limits() transport.Limits { return d.limits }
func (d *fakeDomain) SetWake(w func())         { d.wake = w }
func (d *fakeDomain) Stats() transport.Stats {
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	return d.stats
}

func (d *fakeDomain) Register(m transport.Memory, a transport.Access) (transport.Region, error) {
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	r := &fakeRegion{d: d, key: transport.LKey(len(d.regions)), m: m, access: a}
	d.regions = append(d.regions, r)
	return r, nil
}

func (d *fakeDomain) AddPeer(a transport.Address) (transport.Peer, error) {
	for i, p := range d.peers {
		if p == string(a) {
			return transport.Peer(i), nil
		}
	}
	d.peers = append(d.peers, string(a))
	return transport.Peer(len(d.peers) - 1), nil
}
func (d *fakeDomain) RemovePeer(p transport.Peer) error {
	d.peers[p] = ""
	return nil
}

func (d *fakeDomain) Import(p transport.Peer, key transport.RemoteKey, size uint64) (transport.Remote, error) {
	n := len(key) - 4
	if n < 0 || string(key[:n]) != d.peers[p] {
		return 0, fmt.Errorf("%w: key of another NIC", transport.ErrBadKey)
	}
	d.remotes = append(d.remotes, &fakeRemote{peer: p, key: binary.LittleEndian.Uint32(key[n:]), size: size})
	return transport.Remote(len(d.remotes) - 1), nil
}
func (d *fakeDomain) Release(r transport.Remote) error {
	d.remotes[r].released = true
	return nil
}
func (d *fakeDomain) NewTemplate(e []transport.TemplateEntry) (transport.Template, error) {
	d.templates = append(d.templates, append([]transport.TemplateEntry(nil), e...))
	return transport.Template(len(d.templates) - 1), nil
}
func (d *fakeDomain) FreeTemplate(t transport.Template) error { d.templates[t] = nil; return nil }

func (d *fakeDomain) post(wr transport.WorkRequest) error {
	switch {
	case d.closed:
		return transport.ErrClosed
	case d.postErr != nil:
		return d.postErr
	case d.limits.MaxSend > 0 && len(d.inflight) >= d.limits.MaxSend:
		d.stats.Again++
		return transport.ErrAgain
	case d.peers[wr.Peer] == "" || wr.Local >= 0 && d.regions[wr.Local].closed || wr.Remote >= 0 && d.remotes[wr.Remote].released:
		return transport.ErrBadHandle
	}
	d.posts.Add(1)
	d.stats.Messages++
	d.stats.Bytes += wr.Len
	d.inflight = append(d.inflight, fakeOp{wr})
	return nil
}

func (d *fakeDomain) Post(wrs []transport.WorkRequest) (int, error) {
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	for i, wr := range wrs {
		if err := d.post(wr); err != nil {
			return i, err
		}
	}
	return len(wrs), nil
}

func (d *fakeDomain) PostScatter(t transport.Template, id transport.WRID, ops []transport.ScatterOp) (int, error) {
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	for i, op := range ops {
		e := d.templates[t][op.Entry]
		k := transport.OpWriteImm
		if op.NoImm {
			k = transport.OpWrite
		}
		if err := d.post(transport.WorkRequest{ID: id, Op: k, Peer: e.Peer, Local: e.Local, Remote: e.Remote, Imm: op.Imm,
			LocalOff: op.LocalOff, RemoteOff: op.RemoteOff, Len: op.Len}); err != nil {
			return i, err
		}
	}
	return len(ops), nil
}

func (d *fakeDomain) PostRecv(rrs []transport.RecvRequest) (n int, err error) {
	// Senders that wait for a receive have to poll again.
	d.net.set(func() { n, err = d.postRecv(rrs) })
	return n, err
}

func (d *fakeDomain) postRecv(rrs []transport.RecvRequest) (int, error) {
	for i, rr := range rrs {
		if len(d.recvs) >= d.limits.MaxRecv {
			return i, transport.ErrAgain
		}
		d.recvs = append(d.recvs, rr)
	}
	return len(rrs), nil
}

// run carries out one operation; false leaves it in flight.
func (d *fakeDomain) run(op *fakeOp, wakes map[*fakeDomain]bool) bool {
	wr := &op.wr
	c := transport.Completion{ID: wr.ID, Op: wr.Op, Peer: wr.Peer, Bytes: wr.Len}
	if d.net.fail != nil {
		c.Status = d.net.fail(d, op)
	}
	to := d.net.doms[d.peers[wr.Peer]]
	if c.Status == transport.StatusOK && (to == nil || to.closed) {
		c.Status = transport.StatusPeerLost
	}
	var src, dst []byte
	if c.Status == transport.StatusOK && wr.Remote >= 0 && wr.Len > 0 {
		r := to.regions[d.remotes[wr.Remote].key]
		if r.closed || wr.RemoteOff+wr.Len > r.m.Size {
			c.Status = transport.StatusRemoteAccess
		} else {
			dst = r.m.Host[wr.RemoteOff : wr.RemoteOff+wr.Len]
			src = d.regions[wr.Local].m.Host[wr.LocalOff : wr.LocalOff+wr.Len]
		}
	}
	if c.Status == transport.StatusOK {
		switch wr.Op {
		case transport.OpWrite, transport.OpWriteImm:
			copy(dst, src)
			if wr.Op == transport.OpWriteImm {
				to.comps = append(to.comps, transport.Completion{Op: transport.OpImm, Imm: wr.Imm, Peer: transport.NoPeer, Bytes: wr.Len})
			}
		case transport.OpRead:
			copy(src, dst)
		case transport.OpFetchAdd, transport.OpCompareSwap:
			old := binary.LittleEndian.Uint64(dst)
			binary.LittleEndian.PutUint64(src, old)
			if wr.Op == transport.OpFetchAdd {
				binary.LittleEndian.PutUint64(dst, old+wr.Operand)
			} else if old == wr.Compare {
				binary.LittleEndian.PutUint64(dst, wr.Operand)
			}
		case transport.OpSend:
			if len(to.recvs) == 0 {
				return false
			}
			rr := to.recvs[0]
			to.recvs = to.recvs[1:]
			rc := transport.Completion{ID: rr.ID, Op: transport.OpRecv, Peer: transport.NoPeer, Bytes: wr.Len}
			for i, p := range to.peers {
				if p == d.addr {
					rc.Peer = transport.Peer(i)
				}
			}
			if wr.Len > rr.Len {
				rc.Status, c.Status = transport.StatusTruncated, transport.StatusTruncated
			} else {
				copy(to.regions[rr.Local].m.Host[rr.Off:], d.regions[wr.Local].m.Host[wr.LocalOff:wr.LocalOff+wr.Len])
			}
			to.comps = append(to.comps, rc)
		}
		wakes[to] = true
	}
	d.comps = append(d.comps, c)
	return true
}

func (d *fakeDomain) Poll(out []transport.Completion) (int, error) {
	wakes := map[*fakeDomain]bool{}
	d.net.mu.Lock()
	if d.pollErr != nil {
		defer d.net.mu.Unlock()
		return 0, d.pollErr
	}
	if !d.net.hold {
		d.net.rng.Shuffle(len(d.inflight), func(i, j int) { d.inflight[i], d.inflight[j] = d.inflight[j], d.inflight[i] })
		var keep []fakeOp
		for i := range d.inflight {
			if d.net.allow != nil && !d.net.allow(d, &d.inflight[i]) || !d.run(&d.inflight[i], wakes) {
				keep = append(keep, d.inflight[i])
			}
		}
		d.inflight = keep
	}
	n := copy(out, d.comps)
	d.comps = append(d.comps[:0], d.comps[n:]...)
	d.net.mu.Unlock()
	for to := range wakes {
		if to.wake != nil {
			to.wake()
		}
	}
	return n, nil
}

func (d *fakeDomain) Close() error {
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	d.closed = true
	d.inflight, d.comps = nil, nil
	return nil
}
