package moe

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"moerail/kernels"
	"moerail/kernels/host"
	"moerail/peergroup"
	"moerail/transport"
	"moerail/transport/loopback"
)

// strict is a provider that fails the n-th call of some method, and counts what
// is not given back.
type strict struct {
	transport.Provider
	failAlloc, failOpen atomic.Int64
	memory, domains     atomic.Int64
}

var errInjected = errors.New("injected")

func (p *strict) Alloc(n uint64) (transport.Memory, error) {
	if p.failAlloc.Add(-1) == 0 {
		return transport.Memory{}, errInjected
	}
	m, err := p.Provider.Alloc(n)
	if err == nil {
		p.memory.Add(1)
	}
	return m, err
}

func (p *strict) Free(m transport.Memory) error {
	p.memory.Add(-1)
	return p.Provider.Free(m)
}

func (p *strict) Open(nic string, cfg transport.DomainConfig) (transport.Domain, error) {
	if p.failOpen.Add(-1) == 0 {
		return nil, errInjected
	}
	d, err := p.Provider.Open(nic, cfg)
	if err != nil {
		return nil, err
	}
	p.domains.Add(1)
	return &strictDomain{d, p, atomic.Bool{}}, nil
}

type strictDomain struct {
	transport.Domain
	p      *strict
	closed atomic.Bool
}

func (d *strictDomain) Close() error {
	if !d.closed.Swap(true) {
		d.p.domains.Add(-1)
	}
	return d.Domain.Close()
}

// badDevice fails its n-th stream.
type badDevice struct {
	kernels.Device
	fail atomic.Int64
}

func (d *badDevice) NewStream(bump func()) (kernels.Stream, error) {
	if d.fail.Add(-1) == 0 {
		return nil, errInjected
	}
	return d.Device.NewStream(bump)
}

// TestSetUpThatFails: EP-50. Whatever fails on one rank fails New on all of them,
// says where, and leaves nothing behind.
func TestSetUpThatFails(t *testing.T) {
	type fault struct {
		name   string
		arm    func(p *strict, d *badDevice, l *loopback.Process, n int)
		times  int
		code   Code
		reason string
	}
	faults := []fault{
		{"alloc", func(p *strict, _ *badDevice, _ *loopback.Process, n int) { p.failAlloc.Store(int64(n)) }, 3, CodeTransport, "injected"},
		{"open", func(p *strict, _ *badDevice, _ *loopback.Process, n int) { p.failOpen.Store(int64(n)) }, 2, CodeTransport, "injected"},
		{"stream", func(_ *strict, d *badDevice, _ *loopback.Process, n int) { d.fail.Store(int64(n)) }, 2, CodeTransport, "injected"},
		{"register", func(_ *strict, _ *badDevice, l *loopback.Process, n int) { l.FailRegistration(n, syscall.ENOMEM) }, 6, CodeRegister, "cannot allocate memory"},
	}
	for _, f := range faults {
		for n := 1; n <= f.times; n++ {
			var ps []*strict
			before := runtime.NumGoroutine()
			errs := newOnAll(t, 3, func(r int, c *Config) {
				l := c.Provider.(*loopback.Process)
				p := &strict{Provider: l}
				dev, _ := host.NewDevice(host.Config{})
				d := &badDevice{Device: dev}
				ps = append(ps, p)
				c.Provider, c.NICs, c.Device = p, []string{"lo0", "lo1"}, d
				c.NumExperts, c.TopK, c.Hidden, c.MaxTokens, c.WindowRows, c.Slots = 6, 2, 24, 8, 4, 2
				if r == 1 {
					f.arm(p, d, l, n)
				}
			})
			for r, err := range errs {
				var se *SetupError
				if !errors.As(err, &se) || se.Code != f.code || !slices.Equal(se.Ranks, []int{1}) || !strings.Contains(err.Error(), f.reason) {
					t.Errorf("%s %d, rank %d: %v (%+v), want %s of rank 1", f.name, n, r, err, se, f.code)
				}
			}
			for r, p := range ps {
				if m, d := p.memory.Load(), p.domains.Load(); m != 0 || d != 0 {
					t.Errorf("%s %d, rank %d: %d allocations and %d domains are left", f.name, n, r, m, d)
				}
			}
			if after := settle(before); after > before {
				t.Errorf("%s %d: %d goroutines, %d before", f.name, n, after, before)
			}
		}
	}
}

// TestLocalFaultsAreToldToAll: a rank whose own fields are wrong fails everybody,
// at once and by name.
func TestLocalFaultsAreToldToAll(t *testing.T) {
	edits := map[string]func(*Config){
		"Provider":       func(c *Config) { c.Provider = nil },
		"setup deadline": func(c *Config) { c.SetupDeadline = -time.Second },
		"deadline":       func(c *Config) { c.Deadline = time.Nanosecond },
		"first deadline": func(c *Config) { c.FirstDeadline = 48 * time.Hour },
	}
	for name, edit := range edits {
		start := time.Now()
		errs := newOnAll(t, 3, func(r int, c *Config) {
			c.NumExperts, c.TopK, c.Hidden, c.MaxTokens = 6, 2, 24, 8
			if r == 2 {
				edit(c)
			}
		})
		for r, err := range errs {
			var ce *ConfigError
			var se *SetupError
			if !errors.As(err, &se) || !slices.Equal(se.Ranks, []int{2}) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s, rank %d: %v", name, r, err)
			}
			if r == 2 && !errors.As(err, &ce) {
				t.Errorf("%s: the rank at fault gets %v, want a ConfigError", name, err)
			}
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
	if _, err := New(context.Background(), Config{}); err == nil || !strings.Contains(err.Error(), "Group is nil") {
		t.Errorf("no group: %v", err)
	}
}

// TestEveryConfigFaultAtOnce lists all that is wrong, with the limits.
func TestEveryConfigFaultAtOnce(t *testing.T) {
	errs := newOnAll(t, 2, func(r int, c *Config) {
		c.NumExperts, c.TopK, c.Hidden, c.MaxTokens, c.Slots = 0, 0, 1<<20, -4, 99
		c.Replicas, c.OutDType, c.Layout, c.WindowRows, c.FirstRound = 3, FP8, 7, 5, 1<<63
	})
	for r, err := range errs {
		var ce *ConfigError
		if !errors.As(err, &ce) {
			t.Fatalf("rank %d: %v", r, err)
		}
		for _, word := range []string{"experts", "top-k", "hidden", "max tokens", "slots", "replicas", "out dtype", "layout", "window rows", "first round", "131072"} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("rank %d: %q does not name %s", r, err, word)
			}
		}
	}
}

// TestAMissingRank: the others are told who did not come, at SetupDeadline.
func TestAMissingRank(t *testing.T) {
	groups := peergroup.NewLocal(2)
	f, err := loopback.New(loopback.Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(context.Background(), Config{
		Group: groups[0], Provider: f, NICs: []string{"lo0"}, SetupDeadline: 50 * time.Millisecond,
		NumExperts: 2, TopK: 1, Hidden: 8, MaxTokens: 4,
	})
	var me *peergroup.MissingError
	if !errors.As(err, &me) || !slices.Equal(me.Missing, []int{1}) {
		t.Errorf("%v, want rank 1 missing", err)
	}
	if _, err := NewLocal(context.Background(), 0, Config{}, nil); err == nil || !strings.Contains(fmt.Sprint(err), "0 ranks") {
		t.Errorf("no ranks: %v", err)
	}
}
