//go:build libfabric && cgo

package efa

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"moerail/internal/fabric"
	"moerail/transport"
)

// wants checks that err is is, and that its text names everything.
func wants(t *testing.T, err, is error, names ...string) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Errorf("error %v, want %v", err, is)
		return
	}
	for _, n := range names {
		if !strings.Contains(err.Error(), n) {
			t.Errorf("error %q does not name %q", err, n)
		}
	}
}

func TestAMissingLibraryIsNamed(t *testing.T) {
	const path = "/no/such/libfabric.so.1"
	_, err := New(Config{Library: path, Provider: "tcp"})
	wants(t, err, ErrNoLibrary, path, "install libfabric")
	d := discover(path)
	wants(t, d.Err, ErrNoLibrary, path)
	if d.Remedy == "" || len(d.Providers) > 0 {
		t.Errorf("%+v", d)
	}
}

func TestALibraryThatIsAnotherIsNamed(t *testing.T) {
	_, err := New(Config{Library: "libm.so.6", Provider: "tcp"})
	wants(t, err, ErrNoLibrary, "libm.so.6", "fi_version")
}

func TestAWrongProviderNameListsWhatThereIs(t *testing.T) {
	_, err := New(Config{Provider: "nonsense"})
	wants(t, err, ErrNoProvider, "nonsense", "tcp;ofi_rxm", "shm", "libfabric.so.1")
	_, err = New(Config{Provider: "udp"}) // which the library takes for udp;ofi_rxd
	wants(t, err, ErrNoProvider, "udp: no provider of exactly this name", "udp;ofi_rxd")
	if err != nil && strings.Contains(err.Error(), "%!") {
		t.Errorf("%v", err)
	}
	_, err = New(Config{Provider: "tcp", DeviceMemory: true})
	if err != nil { // no software provider registers memory of GPUs here
		wants(t, err, ErrNoProvider, "memory of GPUs")
	}
}

func TestAWrongInterfaceListsWhatThereIs(t *testing.T) {
	_, err := New(Config{Provider: "tcp", Interface: "nosuch0"})
	wants(t, err, ErrNoProvider, "nosuch0", "lo")
}

func TestBadConfigurations(t *testing.T) {
	for name, c := range map[string]Config{
		"NumNICs":        {Provider: "shm", NumNICs: -1},
		"too many":       {Provider: "shm", NumNICs: maxNICs + 1},
		"ConnectTimeout": {Provider: "shm", ConnectTimeout: -1},
		"MaxRegion":      {Provider: "shm", MaxRegion: 100},
	} {
		if p, err := New(c); err == nil {
			t.Errorf("%s: %v", name, p)
		}
	}
	p := open(t, Config{Provider: "shm"})
	if _, err := p.Open("nosuch", transport.DomainConfig{}); err == nil || !strings.Contains(err.Error(), "shm") {
		t.Errorf("an unknown NIC: %v", err)
	}
	if _, err := p.Open(p.NICs()[0].Name, transport.DomainConfig{MaxSend: -1}); err == nil {
		t.Error("MaxSend -1 is accepted")
	}
}

func TestTCPTakesWhatTheLibraryHas(t *testing.T) {
	p := open(t, Config{Provider: "tcp", Interface: "lo"})
	native := "libfabric:net" // as it is called before 2.0
	if _, version := p.Library(); strings.HasPrefix(version, "2.") {
		native = "libfabric:tcp"
	}
	if n := p.Name(); n != native {
		t.Errorf("provider %q, want %q", n, native)
	}
	if n := p.NICs(); len(n) != 1 || n[0].Name != "lo" {
		t.Errorf("NICs %+v", n)
	}
}

// side is one domain with memory.
type side struct {
	t   testing.TB
	d   *domain
	mem transport.Memory
	reg transport.Region
	out [64]transport.Completion
}

func newSide(t testing.TB, p *Provider, cfg transport.DomainConfig, size uint64) *side {
	t.Helper()
	dom, err := p.Open(p.NICs()[0].Name, cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := &side{t: t, d: dom.(*domain)}
	t.Cleanup(func() {
		if err := dom.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if s.mem, err = p.Alloc(size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dom.Close(); p.Free(s.mem) })
	if s.reg, err = s.d.Register(s.mem, transport.AccessAll); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *side) know(addr transport.Address, key transport.RemoteKey, size uint64) (transport.Peer, transport.Remote) {
	s.t.Helper()
	p, err := s.d.AddPeer(addr)
	if err != nil {
		s.t.Fatal(err)
	}
	r, err := s.d.Import(p, key, size)
	if err != nil {
		s.t.Fatal(err)
	}
	return p, r
}

// poll gives what came.
func (s *side) poll() []transport.Completion {
	s.t.Helper()
	n, err := s.d.Poll(s.out[:])
	if err != nil {
		s.t.Fatal(err)
	}
	if n == 0 {
		yield()
	}
	return s.out[:n]
}

func (s *side) post(wrs ...transport.WorkRequest) {
	s.t.Helper()
	if n, err := s.d.Post(wrs); n != len(wrs) || err != nil {
		s.t.Fatalf("posted %d of %d: %v", n, len(wrs), err)
	}
}

// await polls all until cond holds for a completion of s.
func (s *side) await(what string, others []*side, cond func(c transport.Completion) bool) transport.Completion {
	s.t.Helper()
	for start := time.Now(); time.Since(start) < childPatience; {
		for _, c := range s.poll() {
			if cond(c) {
				return c
			}
		}
		for _, o := range others {
			o.poll()
		}
	}
	s.t.Fatalf("%s: not within %v", what, childPatience)
	return transport.Completion{}
}

func isImm(v transport.Imm) func(transport.Completion) bool {
	return func(c transport.Completion) bool { return c.Op == transport.OpImm && c.Imm == v }
}

func (s *side) imm(p transport.Peer, v transport.Imm) transport.WorkRequest {
	return transport.WorkRequest{Op: transport.OpWriteImm, Peer: p, Local: transport.NoKey, Remote: transport.NoRemote, Imm: v}
}

func TestPeersWithOtherSettingsAreRefusedWithTheReason(t *testing.T) {
	tcp := newSide(t, open(t, Config{Provider: "tcp;ofi_rxm"}), transport.DomainConfig{}, 4096)
	net := newSide(t, open(t, Config{Provider: "net"}), transport.DomainConfig{}, 4096)
	shm := newSide(t, open(t, Config{Provider: "shm"}), transport.DomainConfig{}, 4096)
	for name, c := range map[string]struct {
		addr transport.Address
		says []string
	}{
		"net to tcp": {net.d.Addr(), []string{"protocol", "provider net", "provider tcp;ofi_rxm"}},
		"shm to tcp": {shm.d.Addr(), []string{"provider shm", "provider tcp;ofi_rxm"}},
	} {
		_, err := tcp.d.AddPeer(c.addr)
		t.Log(err)
		wants(t, err, transport.ErrBadAddress, c.says...)
		_ = name
	}
	for says, change := range map[string]func(*identity){
		"IPv6":                            func(id *identity) { id.format = fabric.FormatSockaddrIn6 },
		"width of immediates is 4":        func(id *identity) { id.immBytes = 4 },
		"tagged messages is false":        func(id *identity) { id.flags = 0 },
		"length of endpoint addresses":    func(id *identity) { id.endpoint = id.endpoint[:8] },
		"says it is of family 0x0a00":     func(id *identity) { id.endpoint[0] = unix.AF_INET6 }, // longer than its bytes
		"with flags 0x80":                 func(id *identity) { id.flags = 0x80 },
		"generation 0x100000000":          func(id *identity) { id.generation = 1 << 32 },
		"with an endpoint of 0":           func(id *identity) { id.endpoint = nil },
		"immediates of 3 bytes":           func(id *identity) { id.immBytes = 3 },
		"an endpoint of 257 and a provid": func(id *identity) { id.endpoint = make([]byte, 257) },
	} {
		id := tcp.d.id
		id.endpoint = append([]byte(nil), id.endpoint...)
		change(&id)
		_, err := tcp.d.AddPeer(id.encode())
		wants(t, err, transport.ErrBadAddress, says)
	}
	id := shm.d.id
	id.endpoint = []byte("fi_shm://no end")
	_, err := shm.d.AddPeer(id.encode())
	wants(t, err, transport.ErrBadAddress, "endpoint's name")
	_, err = tcp.d.AddPeer(append(transport.Address("mRsh"), make([]byte, 60)...))
	wants(t, err, transport.ErrBadAddress, "another fabric")
}

// A peer that is killed is lost to those that it owes; others notice nothing.
func TestAKilledPeerIsLostInTime(t *testing.T) {
	const timeout = 2 * time.Second
	eachProvider(t, func(t *testing.T, provider string) {
		j := job{Provider: provider, Ranks: 1, Domains: 1, Sizes: []uint64{4096}, Idle: true}
		victim, vc := start(t, j)
		bystander, bc := start(t, j)
		s := newSide(t, open(t, Config{Provider: provider, ConnectTimeout: timeout}), transport.DomainConfig{}, 4096)
		for _, c := range []*process{victim, bystander} {
			c.tell(t, nil)
		}
		v, vr := s.know(unhex(t, vc.Addr[0]), unhex(t, vc.Key[0]), j.regionBytes())
		b, br := s.know(unhex(t, bc.Addr[0]), unhex(t, bc.Key[0]), j.regionBytes())
		write := func(p transport.Peer, r transport.Remote, id transport.WRID) transport.WorkRequest {
			return transport.WorkRequest{ID: id, Op: transport.OpWrite, Peer: p, Local: s.reg.LKey(), Remote: r, Len: 512}
		}
		for _, wr := range []transport.WorkRequest{write(v, vr, 1), write(b, br, 2)} {
			s.post(wr)
			if c := s.await("a first write", nil, func(transport.Completion) bool { return true }); c.Status != transport.StatusOK {
				t.Fatalf("a first write ended as %+v", c)
			}
		}
		if err := victim.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		victim.cmd.Wait()
		killed := time.Now()
		var owedV, owedB, okB int
		var lost time.Duration
		for lost == 0 || owedV > 0 || owedB > 0 || okB < 50 {
			if time.Since(killed) > timeout+10*time.Second {
				t.Fatalf("%v after the kill: %d owed by the dead, %d by the living, %d of its writes ended, lost after %v",
					time.Since(killed), owedV, owedB, okB, lost)
			}
			if owedV < 20 && lost == 0 {
				s.post(write(v, vr, 1))
				owedV++
			}
			if owedB < 4 && (lost == 0 || okB < 50) {
				s.post(write(b, br, 2))
				owedB++
			}
			for _, c := range s.poll() {
				switch {
				case c.ID == 2 && c.Status == transport.StatusOK:
					owedB--
					okB++
				case c.ID == 1 && (c.Status == transport.StatusOK || c.Status == transport.StatusPeerLost || c.Status == transport.StatusFlushed):
					owedV--
					if c.Status != transport.StatusOK && lost == 0 {
						lost = time.Since(killed)
					}
				default:
					t.Fatalf("completion %+v", c)
				}
			}
		}
		t.Logf("lost after %v, %d writes to the living meanwhile", lost.Round(time.Millisecond), okB)
		if lost > timeout+3*time.Second {
			t.Errorf("lost after %v, the limit is %v", lost, timeout)
		}
		s.post(write(v, vr, 1))
		if c := s.await("a write to the dead", nil, func(c transport.Completion) bool { return c.ID == 1 }); c.Status != transport.StatusPeerLost {
			t.Errorf("a write to a lost peer ended as %+v", c)
		}
		if err := s.d.RemovePeer(v); err != nil {
			t.Error(err)
		}
		s.post(write(b, br, 2))
		s.await("a write to the living", nil, func(c transport.Completion) bool { return c.ID == 2 && c.Status == transport.StatusOK })
		if n := s.d.f.Counters().BadContexts; n > 0 {
			t.Errorf("%d completions for nothing that was posted", n)
		}
	})
}

// A process that starts again where another was has its address, but not its
// generation: it is a new peer, and what was meant for the former life is
// dropped.
func TestARestartAtTheSameAddressIsANewPeer(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string) {
		p := open(t, Config{Provider: provider, ConnectTimeout: 2 * time.Second})
		a, b := newSide(t, p, transport.DomainConfig{}, 4096), newSide(t, p, transport.DomainConfig{}, 4096)
		former := b.d.id
		former.generation = former.generation>>32<<32 | uint64(^uint32(former.generation))
		old, err := a.d.AddPeer(former.encode())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.d.Import(old, b.reg.RemoteKey(), 4096); !errors.Is(err, transport.ErrBadKey) {
			t.Errorf("a key of the new life for the former: %v", err)
		}
		a.post(a.imm(old, 7), transport.WorkRequest{Op: transport.OpSend, Peer: old, Local: a.reg.LKey(), Len: 100})
		if _, err := b.d.PostRecv([]transport.RecvRequest{{ID: 3, Local: b.reg.LKey(), Len: 200}}); err != nil {
			t.Fatal(err)
		}
		for start, ended := time.Now(), 0; ended < 2 || b.d.Stats().StaleWrites == 0; {
			if time.Since(start) > childPatience {
				t.Fatalf("%d of 2 ended, %d arrivals were stale", ended, b.d.Stats().StaleWrites)
			}
			ended += len(a.poll())
			for _, c := range b.poll() {
				t.Errorf("the new life got %+v, meant for the former", c)
			}
		}
		fresh, remote := a.know(b.d.Addr(), b.reg.RemoteKey(), 4096)
		if fresh == old {
			t.Fatal("the new life is the old peer")
		}
		a.post(a.imm(old, 8), a.imm(fresh, 9), transport.WorkRequest{Op: transport.OpWrite, Peer: fresh, Local: a.reg.LKey(), Remote: remote, Len: 8})
		ends := map[transport.Peer][]transport.Status{}
		arrived := 0
		for start := time.Now(); len(ends[old])+len(ends[fresh]) < 3 || arrived == 0; {
			if time.Since(start) > childPatience {
				t.Fatalf("ended: former %v, new %v; %d arrived", ends[old], ends[fresh], arrived)
			}
			for _, e := range a.poll() {
				ends[e.Peer] = append(ends[e.Peer], e.Status)
			}
			for _, c := range b.poll() {
				if arrived++; !isImm(9)(c) {
					t.Errorf("the new life got %+v", c)
				}
			}
		}
		if fmt.Sprint(ends[old]) != "[peer lost]" || fmt.Sprint(ends[fresh]) != "[ok ok]" {
			t.Errorf("ended: former %v, new %v", ends[old], ends[fresh])
		}
		if err := a.d.RemovePeer(old); err != nil {
			t.Error(err)
		}
		// Removed and added again: the same endpoint, another handle.
		if err := a.d.RemovePeer(fresh); err != nil {
			t.Fatal(err)
		}
		again, _ := a.know(b.d.Addr(), b.reg.RemoteKey(), 4096)
		a.post(a.imm(again, 10))
		b.await("an immediate after adding again", []*side{a}, isImm(10))
	})
}

// A key that is well formed and opens nothing must not harm other peers.
func TestAGarbageKeyHarmsNobodyElse(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string) {
		p := open(t, Config{Provider: provider, ConnectTimeout: time.Second})
		a, b, c := newSide(t, p, transport.DomainConfig{}, 4096), newSide(t, p, transport.DomainConfig{}, 4096), newSide(t, p, transport.DomainConfig{}, 4096)
		k := b.reg.(*region).key
		k.keys = []uint64{k.keys[0] ^ 0x5555}
		bad, remote := a.know(b.d.Addr(), k.encode(), 4096)
		good, _ := a.know(c.d.Addr(), c.reg.RemoteKey(), 4096)
		for i := range b.mem.Host {
			a.mem.Host[i] = 0xee
		}
		a.post(transport.WorkRequest{Op: transport.OpWriteImm, Peer: bad, Local: a.reg.LKey(), Remote: remote, Len: 64, Imm: 5}, a.imm(good, 6))
		c.await("an immediate for the other", []*side{a, b}, isImm(6))
		for i, v := range b.mem.Host {
			if v != 0 {
				t.Fatalf("byte %d was written by a key that opens nothing", i)
			}
		}
	})
}
