package micro

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Level says which layer is measured.
type Level string

// The layers, from the top.
const (
	// LevelEngine is what an application calls: Engine.Write from a goroutine, which
	// then waits on an ImmCounter or a Counter.
	LevelEngine Level = "engine"
	// LevelWorker is what a round does: a Poller and an ImmHandler on the engine's
	// worker, which scatter by template.
	LevelWorker Level = "worker"
	// LevelDomain is the provider alone: Post and Poll in a loop.
	LevelDomain Level = "domain"
)

// Levels is every level, top first.
func Levels() []Level { return []Level{LevelEngine, LevelWorker, LevelDomain} }

// Config is what is measured. All ranks must have the same.
type Config struct {
	Sizes []uint64 `json:"sizes"` // bytes of a write
	// Samples is how many latencies are taken of a size; fewer, but at least 100, if
	// they would move more than SampleBytes.
	Samples     uint64 `json:"samples"`
	SampleBytes uint64 `json:"sample_bytes"`
	// Burst is how many writes a stream has; fewer, but at least Window, if they
	// would move more than BurstBytes.
	Burst      uint64 `json:"burst"`
	BurstBytes uint64 `json:"burst_bytes"`
	Bursts     int    `json:"bursts"` // streams of a size; the figure is their median
	Warmup     int    `json:"warmup"` // exchanges before the first latency
	Window     int    `json:"window"` // writes without local completion, at most
	Span       uint64 `json:"span"`   // bytes over which the writes of a stream rotate
	Level      Level  `json:"level"`
	NICs       int    `json:"nics"`
	// Poll says what an idle worker of an engine does.
	Poll Poll `json:"poll"`
}

// Poll is a policy of idle workers.
type Poll string

const (
	// PollSpin never sleeps, as the raw programs.
	PollSpin Poll = "spin"
	// PollDefault is what an engine does that is not told anything.
	PollDefault Poll = "default"
)

// Defaults are the values of flags not given.
func Defaults() Config {
	return Config{
		Sizes:   []uint64{8, 64, 512, 4096, 32768, 262144, 1048576},
		Samples: 10000, SampleBytes: 256 << 20, Burst: 20000, BurstBytes: 64 << 20, Bursts: 5,
		Warmup: 200, Window: 64, Span: 4 << 20, Level: LevelEngine, NICs: 1, Poll: PollSpin,
	}
}

// Limits of a Config.
const (
	MaxSizes   = 64
	MaxSize    = 1 << 30
	MaxWindow  = 1024
	MaxSpan    = 1 << 30
	maxSamples = 1e8
	maxBurst   = 1e9
	maxBursts  = 1000
	maxWarmup  = 1e6
	maxNICs    = 4

	minSamples = 100
)

// ConfigError is a field that cannot be; Field is its flag.
type ConfigError struct{ Field, Reason string }

func (e *ConfigError) Error() string { return "--" + e.Field + " " + e.Reason }

// Validate returns a *ConfigError for the first field that cannot be.
func (c *Config) Validate() error {
	bad := func(field, format string, args ...any) error {
		return &ConfigError{field, fmt.Sprintf(format, args...)}
	}
	if len(c.Sizes) < 1 || len(c.Sizes) > MaxSizes {
		return bad("sizes", "names %d sizes, allowed are 1 to %d", len(c.Sizes), MaxSizes)
	}
	for _, n := range c.Sizes {
		if n < 1 || n > MaxSize {
			return bad("sizes", "has %d bytes, allowed are 1 to %d", n, MaxSize)
		}
	}
	for _, f := range []struct {
		field              string
		value, least, most uint64
	}{
		{"samples", c.Samples, minSamples, maxSamples}, {"sample-bytes", c.SampleBytes, 1, 1 << 62},
		{"burst", c.Burst, 1, maxBurst}, {"burst-bytes", c.BurstBytes, 1, 1 << 62},
		{"bursts", uint64(c.Bursts), 1, maxBursts}, {"warmup", uint64(c.Warmup), 0, maxWarmup},
		{"window", uint64(c.Window), 1, MaxWindow}, {"span", c.Span, 64, MaxSpan}, {"nics", uint64(c.NICs), 1, maxNICs},
	} {
		if f.value < f.least || f.value > f.most {
			return bad(f.field, "is %d, allowed are %d to %d", int64(f.value), f.least, f.most)
		}
	}
	if !slices.Contains(Levels(), c.Level) {
		return bad("level", "is %q, want one of %v", c.Level, Levels())
	}
	if c.Poll != PollSpin && c.Poll != PollDefault {
		return bad("poll", "is %q, want %s or %s", c.Poll, PollSpin, PollDefault)
	}
	if c.Level == LevelDomain && c.NICs != 1 {
		return bad("nics", "is %d, but --level domain is one NIC", c.NICs)
	}
	return nil
}

// ParseSizes reads a list as 8,4096,1048576; k and M stand for 1024 and 1024².
func ParseSizes(list string) ([]uint64, error) {
	var sizes []uint64
	for i, part := range strings.Split(list, ",") {
		text, unit := strings.TrimSpace(part), uint64(1)
		if t, ok := strings.CutSuffix(text, "k"); ok {
			text, unit = t, 1<<10
		} else if t, ok := strings.CutSuffix(text, "M"); ok {
			text, unit = t, 1<<20
		}
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return nil, &ConfigError{"sizes", fmt.Sprintf("entry %d is %q, want a number of bytes, as 8, 4k or 1M", i, part)}
		}
		sizes = append(sizes, n*unit)
	}
	return sizes, nil
}

// fewer is n, or as many as move at most bytes, but at least least.
func fewer(n, bytes, size, least uint64) uint64 { return max(min(n, bytes/size), least) }

func (c *Config) samples(size uint64) int {
	return int(fewer(c.Samples, c.SampleBytes, size, minSamples))
}

func (c *Config) burst(size uint64) int {
	return int(fewer(c.Burst, c.BurstBytes, size, uint64(c.Window)))
}

// layout is where the writes of one size come from and go to: slot s lies at
// s*stride of the sender's first half and of the receiver's second half.
type layout struct {
	size, stride, half uint64
	slots              int
}

const slotAlign = 64

// half is the bytes of either half of a rank's region.
func (c *Config) half() uint64 {
	const page = 4096
	return (max(c.Span, slices.Max(c.Sizes)) + page - 1) / page * page
}

func (c *Config) layout(size uint64) layout {
	l := layout{size: size, stride: (size + slotAlign - 1) / slotAlign * slotAlign, half: c.half()}
	l.slots = int(min(max(c.Span/l.stride, 1), uint64(c.Window)))
	return l
}

// local and remote are the offsets of slot s.
func (l *layout) local(s int) uint64  { return uint64(s) * l.stride }
func (l *layout) remote(s int) uint64 { return l.half + uint64(s)*l.stride }

// byteOf is what rank sends as byte at of slot.
func byteOf(rank, slot, at int) byte {
	return byte(at*131 + (at>>8)*17 + slot*29 + rank*7 + 1)
}

// fill writes what rank sends and clears what it receives.
func (l *layout) fill(region []byte, rank int) {
	for s := range l.slots {
		slot := region[l.local(s):][:l.size]
		for i := range slot {
			slot[i] = byteOf(rank, s, i)
		}
	}
	l.clear(region)
}

func (l *layout) clear(region []byte) { clear(region[l.half:]) }

// check looks at every byte of the first slots slots that from sent.
func (l *layout) check(region []byte, from, slots int) error {
	for s := range slots {
		for i, got := range region[l.remote(s):][:l.size] {
			if want := byteOf(from, s, i); got != want {
				return &WrongError{Size: l.size, Slot: s, Byte: i, Got: got, Want: want, From: from}
			}
		}
	}
	return nil
}

// WrongError is a byte that did not arrive as it was sent.
type WrongError struct {
	Size       uint64
	Slot, Byte int
	Got, Want  byte
	From       int // the rank that sent it
}

func (e *WrongError) Error() string {
	return fmt.Sprintf("not verified: write of %d bytes from rank %d: byte %d of slot %d is %#x, want %#x", e.Size, e.From, e.Byte, e.Slot, e.Got, e.Want)
}
