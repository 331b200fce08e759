package shm

import (
	"testing"

	"moerail/transport"
	"moerail/transport/transporttest"
)

func TestConformance(t *testing.T) {
	for name, limits := range map[string]transport.DomainConfig{
		"default": {},
		"small":   {MaxSend: 3, MaxRecv: 70},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := New(Config{NumNICs: 4})
			if err != nil {
				t.Fatal(err)
			}
			transporttest.Run(t, transporttest.Harness{
				NICs: 4,
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
			})
		})
	}
}
