//go:build libfabric && cgo

package efa

import (
	"strings"
	"testing"
	"time"

	"moerail/transport"
	"moerail/transport/transporttest"
)

// open makes a provider of the name, which the library must have.
func open(t testing.TB, cfg Config) *Provider {
	t.Helper()
	p, err := New(cfg)
	if err != nil {
		t.Fatalf("%s: %v", cfg.Provider, err)
	}
	return p
}

var softwareProviders = []struct {
	name  string
	quirk string // why a target's refusal does not reach the sender
}{
	{"tcp;ofi_rxm", "tcp ends a write when the socket has taken it, and tears the connection down at a bad key"},
	{"net", "net ends a write when the socket has taken it, and tears the connection down at a bad key"},
	{"shm", "shm drops what has a bad key and says nothing"},
}

func harness(p *Provider, limits transport.DomainConfig, quirk string) transporttest.Harness {
	return transporttest.Harness{
		NICs: len(p.NICs()),
		Open: func(t testing.TB, _, nic int, cfg transport.DomainConfig) transport.Domain {
			t.Helper()
			if cfg == (transport.DomainConfig{}) {
				cfg = limits
			}
			d, err := p.Open(p.NICs()[nic].Name, cfg)
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Alloc: func(t testing.TB, size uint64) transport.Memory {
			t.Helper()
			m, err := p.Alloc(size)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { p.Free(m) })
			return m
		},
		NoRemoteErrors: quirk,
	}
}

func TestConformance(t *testing.T) {
	for _, s := range softwareProviders {
		t.Run(strings.ReplaceAll(s.name, ";", "+"), func(t *testing.T) {
			p := open(t, Config{Provider: s.name, NumNICs: 4, ConnectTimeout: 2 * time.Second})
			transporttest.Run(t, harness(p, transport.DomainConfig{}, s.quirk))
		})
	}
}

// The same with queues that are always full and regions in many pieces.
func TestConformanceSmall(t *testing.T) {
	if testing.Short() {
		t.Skip("TestConformanceStrict covers pieces and full queues in short runs")
	}
	for _, s := range softwareProviders {
		t.Run(strings.ReplaceAll(s.name, ";", "+"), func(t *testing.T) {
			p := open(t, Config{Provider: s.name, NumNICs: 4, ConnectTimeout: 2 * time.Second, MaxRegion: 64 << 10})
			h := harness(p, transport.DomainConfig{MaxSend: 3, MaxRecv: 70, MaxCQ: 64}, s.quirk)
			h.MaxBytes = 2 << 20
			transporttest.Run(t, h)
		})
	}
}
