//go:build libfabric && cgo

package efa

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"moerail/transport"
	"moerail/transport/transporttest"
)

var fake struct {
	sync.Once
	path string
	err  error
}

// fakeLibrary compiles testdata/fake.c, a libfabric with one strict provider.
func fakeLibrary(t testing.TB) string {
	t.Helper()
	fake.Do(func() {
		dir, err := os.MkdirTemp("", "moerail-fake")
		if err != nil {
			fake.err = err
			return
		}
		fake.path = filepath.Join(dir, "libfabric.so.1")
		args := append(strings.Fields(os.Getenv("CGO_CFLAGS")), "-shared", "-fPIC", "-O1", "-o", fake.path, "testdata/fake.c", "-lpthread")
		if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
			fake.err = fmt.Errorf("cc: %w\n%s", err, out)
		}
	})
	if fake.err != nil {
		t.Fatal(fake.err)
	}
	return fake.path
}

// alive is how many objects of the fake library are open.
func alive(p *Provider) string { return p.lib.ErrnoText(9999) }

// The suite over a provider that is as strict as EFA: descriptors for all local
// memory, its own keys, 4 bytes beside a write, one segment, and errors for what
// a target does not allow.
func TestConformanceStrict(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"efa":               {},
		"pieces":            {},
		"posted receives":   {"FAKE_RX": "1"},
		"bound to endpoint": {"FAKE_MR": "0x274"}, // local, virtual addresses, allocated, the provider's keys, endpoint
	} {
		t.Run(name, func(t *testing.T) {
			lib := fakeLibrary(t)
			for k, v := range env {
				t.Setenv(k, v)
			}
			cfg := Config{Library: lib, ConnectTimeout: time.Second}
			if name == "pieces" {
				cfg.MaxRegion = 32 << 10
			}
			p := open(t, cfg)
			if p.Name() != "libfabric:efa" || len(p.NICs()) != 2 {
				t.Fatalf("%s with NICs %v", p.Name(), p.NICs())
			}
			var limits transport.DomainConfig
			if name == "pieces" {
				limits = transport.DomainConfig{MaxSend: 3, MaxRecv: 70, MaxCQ: 64}
			}
			h := harness(p, limits, "")
			h.MaxBytes = 1 << 20
			transporttest.Run(t, h)
			if n := alive(p); n != "0" {
				t.Errorf("%s objects are open when all domains are closed", n)
			}
		})
	}
}

func TestMoreNICsThanDevicesAreRefusedForHardware(t *testing.T) {
	_, err := New(Config{Library: fakeLibrary(t), NumNICs: 3})
	wants(t, err, ErrNoProvider, "3 NICs", "rdmap0s6-rdm")
}

func TestWhatIsNotSupportedIsRefusedByName(t *testing.T) {
	lib := fakeLibrary(t)
	for _, c := range []struct{ env, value, says string }{
		{"FAKE_MR", "0x7c", "FI_MR_RAW"},                 // and what EFA wants
		{"FAKE_MR", "0xf4", "FI_MR_MMU_NOTIFY"},          //
		{"FAKE_MODE", "0x400000000000000", "MSG_PREFIX"}, // 1<<58
		{"FAKE_MODE", "0x20000000000000", "FI_RESTRICTED_COMP"},
	} {
		t.Run(c.says, func(t *testing.T) {
			t.Setenv(c.env, c.value)
			_, err := New(Config{Library: lib})
			wants(t, err, ErrNoProvider, c.says)
		})
	}
}

func TestNarrowDataMeansNoImmediates(t *testing.T) {
	t.Setenv("FAKE_DATA", "2")
	p := open(t, Config{Library: fakeLibrary(t)})
	s := newSide(t, p, transport.DomainConfig{}, 4096)
	if s.d.Limits().ImmBytes != 0 || !strings.Contains(fmt.Sprint(p.Missing()), "2 bytes beside a write") {
		t.Errorf("limits %+v, missing %q", s.d.Limits(), p.Missing())
	}
	peer, _ := s.know(s.d.Addr(), s.reg.RemoteKey(), 4096)
	if _, err := s.d.Post([]transport.WorkRequest{s.imm(peer, 1)}); err == nil {
		t.Error("an immediate was taken")
	}
}

// scenario uses every call once or more and returns the first error.
func scenario(lib string) (p *Provider, err error) {
	p, err = New(Config{Library: lib, ConnectTimeout: 200 * time.Millisecond})
	if err != nil {
		return nil, err
	}
	d, err := p.Open(p.NICs()[0].Name, transport.DomainConfig{})
	if err != nil {
		return p, err
	}
	m, err := p.Alloc(8192)
	if err != nil {
		return p, err
	}
	defer p.Free(m)
	defer func() {
		if e := d.Close(); e != nil && err == nil {
			err = e
		}
	}()
	r, err := d.Register(m, transport.AccessAll)
	if err != nil {
		return p, err
	}
	for range 2 {
		peer, err := d.AddPeer(d.Addr())
		if err != nil {
			return p, err
		}
		remote, err := d.Import(peer, r.RemoteKey(), m.Size)
		if err != nil {
			return p, err
		}
		if _, err := d.PostRecv([]transport.RecvRequest{{Local: r.LKey(), Len: 64}, {Local: r.LKey(), Len: 64}}); err != nil {
			return p, err
		}
		wr := transport.WorkRequest{Peer: peer, Local: r.LKey(), Remote: remote, RemoteOff: 4096, Len: 8}
		var wrs []transport.WorkRequest
		for _, op := range []transport.Opcode{transport.OpWrite, transport.OpWriteImm, transport.OpRead, transport.OpFetchAdd, transport.OpSend} {
			if wr.Op = op; op == transport.OpFetchAdd && !d.Limits().Atomic || op == transport.OpRead && !d.Limits().Read || op == transport.OpWriteImm && d.Limits().ImmBytes == 0 {
				continue
			}
			wrs = append(wrs, wr)
		}
		if _, err := d.Post(wrs); err != nil {
			return p, err
		}
		out := make([]transport.Completion, 16)
		for start, ended := time.Now(), 0; ended < len(wrs); {
			n, err := d.Poll(out)
			if err != nil {
				return p, err
			}
			for _, c := range out[:n] {
				if c.Op != transport.OpImm && c.Op != transport.OpRecv {
					ended++
				}
				if c.Status != transport.StatusOK {
					err = fmt.Errorf("%v ended as %v, vendor %d", c.Op, c.Status, c.Vendor)
				}
			}
			if err != nil {
				return p, err
			}
			if time.Since(start) > 5*time.Second {
				return p, fmt.Errorf("%d of %d ended within 5 s", ended, len(wrs))
			}
		}
		if err := d.RemovePeer(peer); err != nil {
			return p, err
		}
	}
	if err := r.Close(); err != nil {
		return p, err
	}
	_, err = d.Poll(nil) // what broke in a call that had nothing to say about it
	return p, err
}

// Every call of libfabric fails once, at each of its first places in a scenario:
// that is an error that names it, or of no consequence, and never a crash, a
// hang or a leak.
func TestEveryCallFails(t *testing.T) {
	lib := fakeLibrary(t)
	p, err := scenario(lib)
	if err != nil {
		t.Fatal(err)
	}
	if n := alive(p); n != "0" {
		t.Fatalf("%s objects are open", n)
	}
	const errno = int(syscall.EREMCHG) // nothing else makes it
	for _, c := range []struct {
		call     string
		places   int
		harmless bool // may be of no consequence
		env      string
	}{
		{"fi_getinfo", 1, false, ""}, {"fi_fabric", 2, false, ""}, {"fi_domain", 2, false, ""}, {"fi_av_open", 2, false, ""},
		{"fi_cq_open", 2, false, ""}, {"fi_endpoint", 2, false, ""}, {"fi_ep_bind", 4, false, ""}, {"fi_enable", 2, false, ""},
		{"fi_getname", 2, false, ""}, {"fi_mr_regattr", 8, false, ""}, {"fi_mr_bind", 8, false, "FAKE_MR=0x274"}, {"fi_mr_enable", 8, false, "FAKE_MR=0x274"},
		{"fi_av_insert", 3, false, ""}, {"fi_av_remove", 2, false, ""}, {"fi_writemsg", 6, true, ""}, {"fi_readmsg", 3, true, ""},
		{"fi_tsend", 2, false, ""}, {"fi_trecv", 2, true, ""}, {"fi_fetch_atomic", 3, true, ""}, {"fi_cq_read", 8, false, ""},
		{"fi_close", 12, false, ""}, {"fi_cancel", 2, true, ""}, {"fi_cq_readerr", 2, true, ""}, {"fi_recv", 3, true, "FAKE_RX=1"},
	} {
		for n := 1; n <= c.places; n++ {
			t.Run(fmt.Sprintf("%s %d", c.call, n), func(t *testing.T) {
				if name, value, ok := strings.Cut(c.env, "="); ok {
					t.Setenv(name, value)
				}
				t.Setenv("FAKE_FAIL", fmt.Sprintf("%s:%d:%d", c.call, n, errno))
				_, err := scenario(lib)
				if err == nil && !c.harmless {
					t.Error("no error")
				}
				os.Unsetenv("FAKE_FAIL")
				if n := alive(p); n != "0" {
					t.Errorf("%s objects are open after %v", n, err)
				}
				t.Log(err)
			})
		}
	}
	// Afterwards all works.
	if _, err := scenario(lib); err != nil {
		t.Error(err)
	}
}
