package micro

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"moerail/peergroup"
	"moerail/transport"
	"moerail/transport/loopback"
	"moerail/transport/shm"
)

// small is a measurement of a few milliseconds.
func small(level Level, nics int) Config {
	c := Defaults()
	c.Sizes, c.Level, c.NICs = []uint64{1, 4096, 20_001}, level, nics
	c.Samples, c.Burst, c.Bursts, c.Warmup, c.Window, c.Span = 100, 60, 2, 5, 16, 1<<18
	return c
}

// pair runs Write on both ranks of one process and returns what they returned.
func pair(t *testing.T, cfg [2]Config, provider func(rank int) transport.Provider) (results [2][]SizeResult, errs [2]error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	groups := peergroup.NewLocal(2)
	var both sync.WaitGroup
	for p := range 2 {
		both.Go(func() {
			defer groups[p].Close()
			prov := provider(p)
			var nics []string
			for _, n := range prov.NICs()[:cfg[p].NICs] {
				nics = append(nics, n.Name)
			}
			results[p], errs[p] = Write(ctx, cfg[p], Rank{Group: groups[p], Provider: prov, NICs: nics, CPU: -1}, nil)
		})
	}
	both.Wait()
	return results, errs
}

func overShm(t *testing.T, nics int) func(int) transport.Provider {
	t.Helper()
	p, err := shm.New(shm.Config{NumNICs: nics})
	if err != nil {
		t.Fatal(err)
	}
	return func(int) transport.Provider { return p }
}

func overLoopback(t *testing.T, cfg loopback.Config, nics int) func(int) transport.Provider {
	t.Helper()
	for i := range nics {
		cfg.NICs = append(cfg.NICs, fmt.Sprint("lo", i))
	}
	f, err := loopback.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return func(rank int) transport.Provider {
		return f.Process(fmt.Sprint("rank", rank), fmt.Sprint("node", rank))
	}
}

func TestWriteOnEveryLevel(t *testing.T) {
	for _, level := range Levels() {
		for _, nics := range []int{1, 3} {
			if level == LevelDomain && nics > 1 {
				continue
			}
			for name, provider := range map[string]func(int) transport.Provider{
				"loopback": overLoopback(t, loopback.Config{Faults: &loopback.Faults{Seed: 1, Reorder: true, PacketBytes: 4096, Completion: loopback.CompleteMixed}}, nics), "shm": overShm(t, nics),
			} {
				t.Run(fmt.Sprintf("%s/%s/%d", level, name, nics), func(t *testing.T) {
					cfg := small(level, nics)
					results, errs := pair(t, [2]Config{cfg, cfg}, provider)
					if errs[0] != nil || errs[1] != nil || len(results[1]) != 0 {
						t.Fatalf("errors %v and %v, %d results on rank 1", errs[0], errs[1], len(results[1]))
					}
					if len(results[0]) != len(cfg.Sizes) {
						t.Fatalf("%d results for %d sizes", len(results[0]), len(cfg.Sizes))
					}
					for i, r := range results[0] {
						l, b := r.Latency, r.Bandwidth
						if r.Bytes != cfg.Sizes[i] || l.Samples != 100 || l.Min <= 0 || l.Min > l.P50 || l.P50 > l.P999 || l.P999 > l.Max {
							t.Errorf("latency of %d bytes: %+v", cfg.Sizes[i], l)
						}
						if b.Messages != 60 || b.Bursts != 2 || b.BytesPerSecond <= 0 || b.Best < b.BytesPerSecond || b.MessagesPerSecond*float64(r.Bytes) != b.BytesPerSecond {
							t.Errorf("bandwidth of %d bytes: %+v", cfg.Sizes[i], b)
						}
					}
				})
			}
		}
	}
}

// spoiler has the byte at offset at of its memory wrong whenever it is written to
// the other rank.
type spoiler struct {
	transport.Provider
	at    uint64
	wrong byte
}

type spoiledDomain struct {
	transport.Domain
	mem   *transport.Memory
	at    uint64
	wrong byte
}

func (s *spoiler) Open(nic string, cfg transport.DomainConfig) (transport.Domain, error) {
	d, err := s.Provider.Open(nic, cfg)
	if err != nil {
		return nil, err
	}
	return &spoiledDomain{Domain: d, at: s.at, wrong: s.wrong}, nil
}

func (d *spoiledDomain) Register(m transport.Memory, a transport.Access) (transport.Region, error) {
	d.mem = &m
	return d.Domain.Register(m, a)
}

func (d *spoiledDomain) Post(wrs []transport.WorkRequest) (int, error) {
	for _, wr := range wrs {
		if wr.LocalOff <= d.at && d.at < wr.LocalOff+wr.Len {
			d.mem.Host[d.at] = d.wrong
		}
	}
	return d.Domain.Post(wrs)
}

// A wrong byte fails both ranks, in the exchange and in the stream, whichever
// rank sent it.
func TestWrongBytesAreFound(t *testing.T) {
	for _, level := range []Level{LevelEngine, LevelDomain} {
		for name, c := range map[string]struct {
			sender int
			at     uint64
		}{"there": {0, 7}, "back": {1, 7}, "stream": {0, 3*64 + 7}} {
			t.Run(string(level)+"/"+name, func(t *testing.T) {
				cfg := small(level, 1)
				cfg.Sizes = []uint64{8}
				inner := overShm(t, 1)
				_, errs := pair(t, [2]Config{cfg, cfg}, func(rank int) transport.Provider {
					if rank == c.sender {
						return &spoiler{inner(rank), c.at, ^byteOf(rank, int(c.at/slotAlign), int(c.at%slotAlign))}
					}
					return inner(rank)
				})
				var wrong *WrongError
				if !errors.As(errs[1-c.sender], &wrong) || wrong.From != c.sender || wrong.Size != 8 {
					t.Errorf("the receiver said %v", errs[1-c.sender])
				}
				if err := errs[c.sender]; err == nil || !strings.Contains(err.Error(), "not verified") {
					t.Errorf("the sender said %v", err)
				}
			})
		}
	}
}

func TestRefusals(t *testing.T) {
	change := func(f func(*Config)) Config {
		c := small(LevelEngine, 1)
		f(&c)
		return c
	}
	for name, c := range map[string]struct {
		cfg   Config
		field string
	}{
		"no size":       {change(func(c *Config) { c.Sizes = nil }), "sizes"},
		"size 0":        {change(func(c *Config) { c.Sizes = []uint64{8, 0} }), "sizes"},
		"huge size":     {change(func(c *Config) { c.Sizes = []uint64{MaxSize + 1} }), "sizes"},
		"few samples":   {change(func(c *Config) { c.Samples = 99 }), "samples"},
		"no burst":      {change(func(c *Config) { c.Burst = 0 }), "burst"},
		"minus burst":   {change(func(c *Config) { c.Bursts = -1 }), "bursts"},
		"minus warm-up": {change(func(c *Config) { c.Warmup = -1 }), "warmup"},
		"window":        {change(func(c *Config) { c.Window = MaxWindow + 1 }), "window"},
		"span":          {change(func(c *Config) { c.Span = 63 }), "span"},
		"level":         {change(func(c *Config) { c.Level = "card" }), "level"},
		"poll":          {change(func(c *Config) { c.Poll = "nap" }), "poll"},
		"nics":          {change(func(c *Config) { c.NICs = 5 }), "nics"},
		"domain nics":   {change(func(c *Config) { c.NICs, c.Level = 2, LevelDomain }), "nics"},
	} {
		var wrong *ConfigError
		if err := c.cfg.Validate(); !errors.As(err, &wrong) || wrong.Field != c.field {
			t.Errorf("%s: %v, want a fault of --%s", name, err, c.field)
		}
	}
	good := Defaults()
	if err := good.Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	alone := peergroup.NewLocal(1)[0]
	defer alone.Close()
	if _, err := Write(t.Context(), good, Rank{Group: alone, Provider: overShm(t, 1)(0), NICs: []string{"shm0"}, CPU: -1}, nil); err == nil {
		t.Error("one rank writes to nobody")
	}
}

// A NIC that cannot carry what is to be measured is refused on both ranks.
func TestFabricThatCannot(t *testing.T) {
	for _, level := range Levels() {
		cfg := small(level, 1)
		_, errs := pair(t, [2]Config{cfg, cfg}, overLoopback(t, loopback.Config{NoImm: true}, 1))
		if !errors.Is(errs[0], transport.ErrUnsupported) || !errors.Is(errs[1], transport.ErrUnsupported) {
			t.Errorf("%s without immediates: %v and %v", level, errs[0], errs[1])
		}
	}
	cfg := small(LevelDomain, 1)
	_, errs := pair(t, [2]Config{cfg, cfg}, overLoopback(t, loopback.Config{MaxMessage: 8192}, 1))
	var wrong *ConfigError
	if !errors.As(errs[0], &wrong) || wrong.Field != "sizes" {
		t.Errorf("sizes above the NIC's: %v", errs[0])
	}
	// The engine cuts them.
	cfg = small(LevelEngine, 1)
	if _, errs := pair(t, [2]Config{cfg, cfg}, overLoopback(t, loopback.Config{MaxMessage: 8192}, 1)); errs[0] != nil || errs[1] != nil {
		t.Errorf("the engine over a NIC of short messages: %v and %v", errs[0], errs[1])
	}
}

// A rank that leaves fails the other one.
func TestRankThatLeaves(t *testing.T) {
	for _, level := range Levels() {
		cfg, short := small(level, 1), small(level, 1)
		short.Sizes = short.Sizes[:1]
		_, errs := pair(t, [2]Config{cfg, short}, overShm(t, 1))
		if errs[0] == nil || errs[1] != nil {
			t.Errorf("%s: %v and %v", level, errs[0], errs[1])
		}
	}
}

// Over a slow fabric every figure is at least what the fabric takes: no clock starts
// late or stops early.
func TestTimesAreWhole(t *testing.T) {
	const oneWay = 200 * time.Microsecond
	for _, level := range Levels() {
		cfg := small(level, 1)
		cfg.Sizes, cfg.Burst, cfg.Bursts = []uint64{8}, 64, 5
		slow := &loopback.Faults{Seed: 1, DelayMin: oneWay, DelayMax: oneWay}
		results, errs := pair(t, [2]Config{cfg, cfg}, overLoopback(t, loopback.Config{Faults: slow}, 1))
		if errs[0] != nil || errs[1] != nil {
			t.Fatal(level, errs)
		}
		r := results[0][0]
		if least := float64(oneWay) / 1e3; r.Latency.Min < least {
			t.Errorf("%s: a latency of %v us, the fabric takes %v", level, r.Latency.Min, least)
		}
		// All writes of a burst and then the answer: two ways at least.
		if most := 64 * 8 / (2 * oneWay).Seconds(); r.Bandwidth.Best > most {
			t.Errorf("%s: %v bytes per second, the fabric allows %v", level, r.Bandwidth.Best, most)
		}
	}
}
