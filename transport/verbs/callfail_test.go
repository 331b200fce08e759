//go:build verbs && cgo && linux

package verbs

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"moerail/internal/ibv"
	"moerail/internal/ibv/ibvfake"
	"moerail/transport"
)

// life is what a pair of domains does from beginning to end: open, register, get
// to know each other, every kind of request, a refused write with the new
// connection that it costs, parting, closing. It stops at the first error; what
// was opened is closed in any case.
type life struct {
	p     *Provider
	doms  []transport.Domain
	mem   []transport.Memory
	peer  [2]transport.Peer
	reg   [2]transport.Region
	rem   [2]transport.Remote
	out   [32]transport.Completion
	ends  []transport.Completion
	imms  int
	recvs int
}

const lifeBytes = 4096

func (l *life) run() (err error) {
	defer func() {
		for _, d := range l.doms {
			err = errors.Join(err, d.Close())
		}
		for _, m := range l.mem {
			err = errors.Join(err, l.p.Free(m))
		}
	}()
	if err := l.begin(); err != nil {
		return err
	}
	a, b := l.doms[0], l.doms[1]
	w := transport.WorkRequest{Op: transport.OpWrite, Peer: l.peer[0], Local: l.reg[0].LKey(), Remote: l.rem[0], Len: 64}
	read, add, imm, send := w, w, w, w
	read.Op, add.Op, add.Len, add.Operand, imm.Op, send.Op = transport.OpRead, transport.OpFetchAdd, 8, 1, transport.OpWriteImm, transport.OpSend
	if _, err := b.PostRecv([]transport.RecvRequest{{Local: l.reg[1].LKey(), Off: 512, Len: 64}}); err != nil {
		return err
	}
	for _, wr := range []transport.WorkRequest{w, imm, read, add, send} {
		if err := l.do(a, wr, transport.StatusOK); err != nil {
			return err
		}
	}
	if err := l.until(func() bool { return l.imms == 1 && l.recvs == 1 }); err != nil {
		return err
	}
	// A region that was closed: the connection breaks and is made again.
	extra, err := b.Register(l.mem[2], transport.AccessAll)
	if err != nil {
		return err
	}
	bad := w
	if bad.Remote, err = a.Import(l.peer[0], extra.RemoteKey(), lifeBytes); err != nil {
		return err
	}
	if err := extra.Close(); err != nil {
		return err
	}
	if err := l.do(a, bad, transport.StatusRemoteAccess); err != nil {
		return err
	}
	if err := l.do(a, w, transport.StatusOK); err != nil {
		return err
	}
	if err := a.RemovePeer(l.peer[0]); err != nil {
		return err
	}
	for range 20 {
		if err := l.pump(); err != nil {
			return err
		}
	}
	return nil
}

func (l *life) begin() error {
	for i := range 3 {
		m, err := l.p.Alloc(lifeBytes)
		if err != nil {
			return err
		}
		l.mem = append(l.mem, m)
		if i == 2 {
			continue
		}
		d, err := l.p.Open(l.p.NICs()[i].Name, transport.DomainConfig{MaxSend: 16, MaxRecv: 4})
		if err != nil {
			return err
		}
		l.doms = append(l.doms, d)
		if l.reg[i], err = d.Register(m, transport.AccessAll); err != nil {
			return err
		}
	}
	for i, d := range l.doms {
		var err error
		if l.peer[i], err = d.AddPeer(l.doms[1-i].Addr()); err != nil {
			return err
		}
		if l.rem[i], err = d.Import(l.peer[i], l.reg[1-i].RemoteKey(), lifeBytes); err != nil {
			return err
		}
	}
	return nil
}

func (l *life) pump() error {
	for _, d := range l.doms {
		n, err := d.Poll(l.out[:])
		for _, c := range l.out[:n] {
			switch c.Op {
			case transport.OpImm:
				l.imms++
			case transport.OpRecv:
				l.recvs++
			default:
				l.ends = append(l.ends, c)
			}
		}
		if err != nil {
			return err
		}
	}
	runtime.Gosched()
	return nil
}

var errSlow = errors.New("nothing happened for 5 s")

func (l *life) until(cond func() bool) error {
	for limit := time.Now().Add(5 * time.Second); !cond(); {
		if time.Now().After(limit) {
			return errSlow
		}
		if err := l.pump(); err != nil {
			return err
		}
	}
	return nil
}

// do posts one request and waits for its end. Where a peer counts as lost, the
// reason is what the next post says.
func (l *life) do(d transport.Domain, wr transport.WorkRequest, want transport.Status) error {
	if _, err := d.Post([]transport.WorkRequest{wr}); err != nil {
		return err
	}
	if err := l.until(func() bool { return len(l.ends) > 0 }); err != nil {
		return err
	}
	c := l.ends[0]
	l.ends = l.ends[1:]
	if c.Status == want {
		return nil
	}
	if c.Status == transport.StatusPeerLost {
		if _, err := d.Post([]transport.WorkRequest{wr}); err != nil {
			return err
		}
	}
	return fmt.Errorf("%v ended as %v, %s", c.Op, c.Status, VendorText(c.Vendor))
}

// Every call is made to fail, each time that it is made in a life. What comes of
// it is an error that names the call and the errno, or nothing at all where the
// call is tried again; in no case does it hang, or leave anything behind.
func TestEveryCallFailing(t *testing.T) {
	const errno = unix.EPROTO // of no meaning to anybody
	// These calls are made again by the next attempt at a handshake.
	again := map[string]bool{"ibv_create_ah": true, "ibv_create_qp": true, "ibv_modify_qp": true}
	fakeProvider(t, 2, DefaultConfig())
	cfg := Config{Devices: []string{"fake0", "fake1"}, GIDIndex: -1, ImmDepth: 8, SendDepth: 8, HandshakeTimeout: 300 * time.Millisecond}
	cfg, err := cfg.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	try := func() error {
		p, err := newProvider(ibv.FromTable(ibvfake.Table(), "fake"), cfg)
		if err != nil {
			return err
		}
		return (&life{p: p}).run()
	}
	ibvfake.Reset(2)
	if err := try(); err != nil {
		t.Fatal("with no fault:", err)
	}
	counts := make([]int, ibvfake.NumCalls)
	for c := range counts {
		counts[c] = ibvfake.Count(ibvfake.Call(c))
	}
	for c, made := range counts {
		call := ibvfake.Call(c)
		t.Run(call.String(), func(t *testing.T) {
			if call.String() == "ibv_reg_dmabuf_mr" {
				t.Skip("only device memory takes it: TestDeviceMemoryRegistration")
			}
			if made == 0 {
				t.Fatal("a life does not make this call")
			}
			errored := 0
			// Polling goes on for as long as it takes: the first and some later
			// ones stand for all.
			for n := 1; n <= made; n += max(1, n/40) {
				ibvfake.Reset(2)
				ibvfake.Fail(call, n, errno)
				live := ibvfake.Live()
				err := try()
				if left := ibvfake.Live() - live; left != 0 {
					t.Fatalf("call %d of %d failed and %d objects are left", n, made, left)
				}
				if k := ibvfake.Overruns(); k != 0 {
					t.Fatalf("call %d of %d failed and %d requests overran a queue", n, made, k)
				}
				if err == nil {
					if !again[call.String()] && ibvfake.Count(call) >= n {
						t.Errorf("call %d of %d failed and nobody heard of it", n, made)
					}
					continue
				}
				errored++
				var ce *ibv.CallError
				if !errors.As(err, &ce) || !errors.Is(err, errno) || !strings.HasPrefix(ce.Call, call.String()) {
					if strings.Contains(err.Error(), fmt.Sprintf("errno %d", errno)) && call.String() == "ibv_post_send" {
						continue // a completion carries the errno as its vendor code
					}
					t.Errorf("call %d of %d failed and the error is: %v", n, made, err)
				}
			}
			if errored == 0 {
				t.Error("none of the failures came to an error")
			}
		})
	}
}
