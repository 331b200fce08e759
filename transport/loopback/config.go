package loopback

import (
	"errors"
	"fmt"
	"time"
)

// Config describes a fabric and the NICs on it. The zero Config is a fast
// fabric without faults.
type Config struct {
	// NICs are the names that NICs() lists, "lo0" to "lo3" when nil. Open takes
	// any name: each Open makes a NIC of its own.
	NICs []string

	// Queue sizes granted where DomainConfig leaves them zero.
	MaxSend int // operations in flight; 1024 if 0
	MaxRecv int // posted receives, and messages waiting for one; 256 if 0
	MaxCQ   int // immediates waiting to be polled; 4096 if 0

	MaxInline   int    // bytes; 64 if 0, none if negative
	MaxMessage  uint64 // bytes of one write or read; 0 is no limit
	MaxRecvSize uint64 // bytes of one send; 0 is no limit
	MaxRegion   uint64 // bytes under one device key, a multiple of 8; 0 is no limit
	MaxRegions  int    // device keys of one NIC; 0 is no limit

	NoImm    bool // the NIC carries no immediates (ImmBytes 0)
	NoRead   bool
	NoAtomic bool

	LinkBytesPerSecond uint64 // told in Limits, not enforced

	// Clock is the fabric's time; nil is the machine's own.
	Clock Clock
	// Faults makes the fabric slow and unordered; nil leaves the fast path.
	Faults *Faults
	// OnFault is told of every arrival that was dropped and every modified
	// source buffer, from whichever goroutine met it, one call at a time. It
	// must not call into the fabric.
	OnFault func(Fault)
}

// CompletionMode says when a local completion of a write or send comes, when
// the fabric has Faults. Reads and atomics always complete when done.
type CompletionMode uint8

const (
	// CompleteLate: only after the payload has landed. The immediate may be
	// polled before or after that.
	CompleteLate CompletionMode = iota
	// CompleteInline: within Post, before anything is visible at the target.
	CompleteInline
	// CompleteEarly: some time after Post, whatever the target has seen.
	CompleteEarly
	// CompleteMixed: each operation draws one of the three.
	CompleteMixed
	numCompletionModes
)

// Faults is what an unkind fabric does. All choices come from Seed; with one
// thread calling, a run repeats exactly.
//
// A write that completes early had its key and range checked when posted; if
// the region is revoked while it flies, it is dropped and counted as stale.
type Faults struct {
	Seed uint64
	// Reorder delivers what is due in random order, and each Poll only a random
	// share of it. Without, delivery follows due time, then posting order.
	Reorder bool
	// PacketBytes splits payloads; packets are delivered independently. 0 is no
	// splitting, except at the seams of a region larger than Config.MaxRegion.
	PacketBytes uint64
	// Each packet, immediate and completion takes DelayMin to DelayMax.
	DelayMin, DelayMax time.Duration
	// PairDelay, if not nil, is added for everything sent from one process to
	// another. It must be a pure function.
	PairDelay func(from, to *Process) time.Duration
	// Completion says when local completions come.
	Completion CompletionMode
	// ImmReceives is how many receives a NIC keeps posted for immediates. Each
	// takes one until it is polled; further ones are held back and counted as
	// ReceiverStall. 0 is as many as MaxCQ.
	ImmReceives int
	// TrapSource checks that the source of a write has not changed between Post
	// and delivery, where its completion is yet to come.
	TrapSource bool
}

// FaultKind says what went wrong.
type FaultKind uint8

const (
	// FaultStale: an arrival for a key that was revoked, or never granted.
	FaultStale FaultKind = 1 + iota
	// FaultAccess: an arrival outside its region or beyond its access rights.
	FaultAccess
	// FaultSourceModified: a source buffer changed before its local completion.
	FaultSourceModified
)

func (k FaultKind) String() string {
	switch k {
	case FaultStale:
		return "stale key"
	case FaultAccess:
		return "access refused"
	case FaultSourceModified:
		return "source modified"
	}
	return "unknown fault"
}

// Fault is one event for Config.OnFault.
type Fault struct {
	Kind     FaultKind
	From, To string // NIC names with process and generation
	Op       string
	ID       uint64 // the request's
	Off, Len uint64 // in the target region; in the source for FaultSourceModified
}

func (f Fault) String() string {
	return fmt.Sprintf("%s: %s of %d bytes at offset %d from %s to %s, request %d",
		f.Kind, f.Op, f.Len, f.Off, f.From, f.To, f.ID)
}

const (
	maxDepth    = 1 << 20
	maxInline   = 4096
	maxDelay    = time.Hour
	defaultSend = 1024
	defaultRecv = 256
	defaultCQ   = 4096
)

// ErrConfig reports a Config outside its limits; every fault is joined to it.
var ErrConfig = errors.New("loopback: bad config")

func (c Config) withDefaults() (Config, error) {
	var errs []error
	depth := func(name string, v *int, def int) {
		if *v == 0 {
			*v = def
		}
		if *v < 1 || *v > maxDepth {
			errs = append(errs, fmt.Errorf("%s is %d, want 1 to %d", name, *v, maxDepth))
		}
	}
	depth("MaxSend", &c.MaxSend, defaultSend)
	depth("MaxRecv", &c.MaxRecv, defaultRecv)
	depth("MaxCQ", &c.MaxCQ, defaultCQ)
	switch {
	case c.MaxInline == 0:
		c.MaxInline = 64
	case c.MaxInline < 0:
		c.MaxInline = 0
	case c.MaxInline > maxInline:
		errs = append(errs, fmt.Errorf("MaxInline is %d, want at most %d", c.MaxInline, maxInline))
	}
	if c.MaxRegion%8 != 0 {
		errs = append(errs, fmt.Errorf("MaxRegion is %d, want a multiple of 8", c.MaxRegion))
	}
	if c.MaxRegions < 0 {
		errs = append(errs, fmt.Errorf("MaxRegions is %d, want 0 or more", c.MaxRegions))
	}
	if c.NICs == nil {
		c.NICs = []string{"lo0", "lo1", "lo2", "lo3"}
	}
	for i, n := range c.NICs {
		if err := checkName(n); err != nil {
			errs = append(errs, fmt.Errorf("NICs[%d]: %w", i, err))
		}
	}
	if c.Clock == nil {
		c.Clock = newSystemClock()
	}
	if c.Faults != nil {
		f := *c.Faults
		c.Faults = &f
		errs = append(errs, f.validate()...)
	}
	if len(errs) > 0 {
		return c, fmt.Errorf("%w: %w", ErrConfig, errors.Join(errs...))
	}
	return c, nil
}

func (f *Faults) validate() (errs []error) {
	if f.DelayMin < 0 || f.DelayMax < f.DelayMin || f.DelayMax > maxDelay {
		errs = append(errs, fmt.Errorf("Faults delay is %v to %v, want 0 <= DelayMin <= DelayMax <= %v",
			f.DelayMin, f.DelayMax, maxDelay))
	}
	if f.Completion >= numCompletionModes {
		errs = append(errs, fmt.Errorf("Faults.Completion is %d, want 0 to %d", f.Completion, numCompletionModes-1))
	}
	if f.ImmReceives < 0 || f.ImmReceives > maxDepth {
		errs = append(errs, fmt.Errorf("Faults.ImmReceives is %d, want 0 to %d", f.ImmReceives, maxDepth))
	}
	return errs
}

const maxName = 64

func checkName(n string) error {
	if n == "" || len(n) > maxName {
		return fmt.Errorf("name of %d bytes, want 1 to %d", len(n), maxName)
	}
	return nil
}
