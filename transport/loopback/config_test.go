package loopback

import (
	"errors"
	"strings"
	"testing"
	"time"

	"moerail/transport"
)

func TestBadConfigNamesEveryFault(t *testing.T) {
	_, err := New(Config{
		NICs: []string{"ok", ""}, MaxSend: -1, MaxRecv: maxDepth + 1, MaxCQ: -7, MaxInline: maxInline + 1,
		MaxRegion: 12, MaxRegions: -1,
		Faults: &Faults{DelayMin: 2, DelayMax: 1, Completion: 9, ImmReceives: -1},
	})
	if !errors.Is(err, ErrConfig) {
		t.Fatal(err)
	}
	for _, want := range []string{"NICs[1]", "MaxSend", "MaxRecv", "MaxCQ", "MaxInline", "MaxRegion is", "MaxRegions", "DelayMin", "Completion", "ImmReceives"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
	if _, err := New(Config{Faults: &Faults{DelayMax: maxDelay + 1}}); !errors.Is(err, ErrConfig) {
		t.Errorf("a delay over the limit: %v", err)
	}
}

func TestOpenChecksNameAndDepths(t *testing.T) {
	f, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		nic string
		cfg transport.DomainConfig
	}{
		{"", transport.DomainConfig{}},
		{strings.Repeat("x", maxName+1), transport.DomainConfig{}},
		{"lo0", transport.DomainConfig{MaxSend: -1}},
		{"lo0", transport.DomainConfig{MaxRecv: maxDepth + 1}},
		{"lo0", transport.DomainConfig{MaxCQ: -1}},
	} {
		if _, err := f.Open(c.nic, c.cfg); err == nil {
			t.Errorf("Open(%q, %+v) succeeded", c.nic, c.cfg)
		}
	}
	d, err := f.Open("lo0", transport.DomainConfig{MaxSend: 5, MaxRecv: 6})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if l := d.Limits(); l.MaxSend != 5 || l.MaxRecv != 6 {
		t.Errorf("granted %+v", l)
	}
	if n := f.NICs(); len(n) != 4 || n[0].Name != "lo0" {
		t.Errorf("NICs %v", n)
	}
}

func TestAddressesOfAnotherFabricAreRefused(t *testing.T) {
	f, _ := New(Config{})
	g, _ := New(Config{})
	a, _ := f.Open("lo0", transport.DomainConfig{})
	b, _ := g.Open("lo0", transport.DomainConfig{})
	defer a.Close()
	defer b.Close()
	if _, err := a.AddPeer(b.Addr()); !errors.Is(err, transport.ErrBadAddress) {
		t.Errorf("another fabric's address: %v", err)
	}
	c, _ := f.Open("lo0", transport.DomainConfig{})
	gone := c.Addr()
	c.Close()
	if _, err := a.AddPeer(gone); !errors.Is(err, transport.ErrPeerLost) {
		t.Errorf("a closed domain's address: %v", err)
	}
}

func TestVirtualClock(t *testing.T) {
	var c VirtualClock
	var got []int
	c.AfterFunc(2*time.Second, func() { got = append(got, 2) })
	c.AfterFunc(time.Hour, func() { got = append(got, 3600) })
	c.Advance(1999 * time.Millisecond)
	if len(got) != 0 {
		t.Fatalf("called early: %v", got)
	}
	c.Advance(time.Millisecond)
	c.Advance(time.Hour)
	if len(got) != 2 || got[0] != 2 || got[1] != 3600 || c.Now() != time.Hour+2*time.Second {
		t.Fatalf("called %v at %v", got, c.Now())
	}
}
