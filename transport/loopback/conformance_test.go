package loopback

import (
	"fmt"
	"testing"
	"time"

	"moerail/transport"
	"moerail/transport/transporttest"
)

// harness lends a new fabric to each test.
func harness(cfg Config) transporttest.Harness {
	type key struct {
		t    testing.TB
		rank int
	}
	h := transporttest.Harness{NICs: 4}
	fabrics := make(map[testing.TB]*Fabric)
	procs := make(map[key]*Process)
	fabric := func(t testing.TB) *Fabric {
		t.Helper()
		if fabrics[t] == nil {
			f, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			fabrics[t] = f
		}
		return fabrics[t]
	}
	h.Open = func(t testing.TB, rank, nic int, dc transport.DomainConfig) transport.Domain {
		t.Helper()
		k := key{t, rank}
		if procs[k] == nil {
			procs[k] = fabric(t).Process(fmt.Sprint("rank", rank), "host")
		}
		d, err := procs[k].Open(fmt.Sprint("lo", nic), dc)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	h.Alloc = func(t testing.TB, size uint64) transport.Memory {
		t.Helper()
		m, err := fabric(t).Alloc(size)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { fabric(t).Free(m) })
		return m
	}
	if v, ok := cfg.Clock.(*VirtualClock); ok {
		h.Idle = func() { v.Advance(50 * time.Microsecond) }
	}
	if cfg.Faults != nil {
		h.Allocates = "a fabric with faults keeps what flies on the heap"
		h.MaxBytes = 8 << 20
	}
	return h
}

func TestConformance(t *testing.T) { transporttest.Run(t, harness(Config{})) }

func TestConformanceSmallLimits(t *testing.T) {
	transporttest.Run(t, harness(Config{MaxSend: 3, MaxRecv: 70, MaxCQ: 2, MaxRegion: 1 << 20, MaxInline: 8, LinkBytesPerSecond: 1e9}))
}

func TestConformanceNothingExtra(t *testing.T) {
	transporttest.Run(t, harness(Config{NoImm: true, NoRead: true, NoAtomic: true, MaxInline: -1}))
}

func TestConformanceWithFaults(t *testing.T) {
	for name, f := range map[string]Faults{
		"reorder": {Seed: 1, Reorder: true, PacketBytes: 300},
		"early":   {Seed: 2, Reorder: true, PacketBytes: 4096, Completion: CompleteEarly},
		"inline":  {Seed: 3, Reorder: true, Completion: CompleteInline, ImmReceives: 1},
		"mixed": {Seed: 4, Reorder: true, PacketBytes: 1000, Completion: CompleteMixed, DelayMax: 300 * time.Microsecond,
			ImmReceives: 1, TrapSource: true},
		"ordered": {Seed: 5, DelayMin: 10 * time.Microsecond, DelayMax: 40 * time.Microsecond, TrapSource: true},
	} {
		t.Run(name, func(t *testing.T) {
			transporttest.Run(t, harness(Config{MaxRegion: 1 << 20, Clock: new(VirtualClock), Faults: &f,
				OnFault: func(ft Fault) {
					if ft.Kind == FaultSourceModified {
						t.Error(ft)
					}
				}}))
		})
	}
}
