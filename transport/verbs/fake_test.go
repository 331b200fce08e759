//go:build verbs && cgo && linux

package verbs

import (
	"testing"

	"moerail/internal/ibv"
	"moerail/internal/ibv/ibvfake"
	"moerail/transport"
	"moerail/transport/transporttest"
)

// fakeProvider offers n devices in memory, and sees to it that a test leaves
// nothing behind and overran no queue.
func fakeProvider(t testing.TB, n int, cfg Config) *Provider {
	t.Helper()
	ibvfake.Reset(n)
	live := ibvfake.Live()
	t.Cleanup(func() {
		if now := ibvfake.Live(); now != live {
			t.Errorf("%d objects of the library are left", now-live)
		}
		if k := ibvfake.Overruns(); k != 0 {
			t.Errorf("queues were overrun %d times", k)
		}
	})
	cfg, err := cfg.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	p, err := newProvider(ibv.FromTable(ibvfake.Table(), "fake"), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// harness lends p's NICs to the conformance suite: rank r has NICs of the node
// r modulo nodes.
func harness(p *Provider, nodes, nics int, unset transport.DomainConfig) transporttest.Harness {
	return transporttest.Harness{
		NICs: nics,
		Open: func(t testing.TB, rank, nic int, cfg transport.DomainConfig) transport.Domain {
			t.Helper()
			if cfg == (transport.DomainConfig{}) {
				cfg = unset
			}
			d, err := p.Open(p.nics[rank%nodes*nics+nic].Name, cfg)
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
	}
}

func TestConformanceOnFakeDevices(t *testing.T) {
	for name, c := range map[string]struct {
		nodes, nics int
		cfg         Config
		unset       transport.DomainConfig
	}{
		"one device":                 {nodes: 1, nics: 1},
		"two nodes of two":           {nodes: 2, nics: 2},
		"small queues":               {nodes: 2, nics: 1, cfg: Config{SendDepth: 2, ImmDepth: 3}, unset: transport.DomainConfig{MaxSend: 3, MaxRecv: 70}},
		"pieces of 1 MiB":            {nodes: 2, nics: 1, cfg: Config{MaxRegion: 1 << 20}},
		"half of the handshake lost": {nodes: 2, nics: 1},
	} {
		t.Run(name, func(t *testing.T) {
			c.cfg.GIDIndex = -1
			p := fakeProvider(t, c.nodes*c.nics, c.cfg)
			if name == "half of the handshake lost" {
				ibvfake.Drop(2, false)
			}
			transporttest.Run(t, harness(p, c.nodes, c.nics, c.unset))
		})
	}
}
