package routing

import (
	"fmt"
	"strings"

	"moerail/kernels/abi"
)

// Limits in force. They are what the wire format and the index types can carry;
// memory usually ends first.
const (
	MaxRanks      = abi.MaxRanks
	MaxExperts    = 1 << 16
	MaxTopK       = 256
	MaxHidden     = 1 << 17
	MaxTokens     = 1 << 22
	MaxSideBytes  = 1 << 16 // opaque bytes per row
	MaxAlignment  = 4096
	MaxSlots      = 16
	MaxNICs       = 4
	MaxIndexRows  = 1 << 31   // rows are numbered in 31 bits
	MaxPicks      = 1<<32 - 1 // of all ranks in a round: receivers add up what headers claim in 32 bits
	MaxShardBytes = 1 << 30
	MaxArenaBytes = 1 << 45 // address space of one rank's buffers
)

// maxFaults bounds what an error tells: a placement that is wrong throughout has a
// fault for every expert.
const maxFaults = 64

// Faults collects everything that is wrong with a configuration, so that a user
// sees all of it at once.
type Faults struct {
	List []string // the first 64
	more int      // faults after those
}

// Addf adds one fault.
func (f *Faults) Addf(format string, args ...any) {
	if len(f.List) == maxFaults {
		f.more++
		return
	}
	f.List = append(f.List, fmt.Sprintf(format, args...))
}

// Range adds a fault unless lo <= v <= hi.
func (f *Faults) Range(name string, v, lo, hi int) {
	if v < lo || v > hi {
		f.Addf("%s is %d, want %d to %d", name, v, lo, hi)
	}
}

// Err is nil without faults, else a *ConfigError.
func (f *Faults) Err() error {
	if len(f.List) == 0 {
		return nil
	}
	list := f.List[:len(f.List):len(f.List)]
	if f.more > 0 {
		list = append(list, fmt.Sprintf("and %d more", f.more))
	}
	return &ConfigError{Faults: list}
}

// ConfigError lists every fault of a configuration, each with the field, its
// value and the limit; after 64 of them, how many more there are.
type ConfigError struct{ Faults []string }

func (e *ConfigError) Error() string { return "bad configuration: " + strings.Join(e.Faults, "; ") }

// size is 64-bit arithmetic that remembers a result above MaxArenaBytes, so
// that a size is either right or refused.
type size struct{ overflow bool }

func (s *size) mul(a, b uint64) uint64 {
	if a != 0 && b > MaxArenaBytes/a {
		s.overflow = true
		return 0
	}
	return a * b
}

func (s *size) add(a, b uint64) uint64 {
	if a > MaxArenaBytes || b > MaxArenaBytes-a {
		s.overflow = true
		return 0
	}
	return a + b
}

func roundUp(n, to uint64) uint64 { return (n + to - 1) / to * to }
