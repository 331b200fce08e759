// Package host runs the four stages of a round on the CPU, over the very structs
// that a CUDA kernel gets.
//
//	caller --launch--> ring of params --> stream goroutine --> stages --> words --> proxy
//	   \--Sync (runs what has not begun, waits for the rest)      ^
//	                                                 Notify ------+-- proxy, peers
//
// A stage that must wait for a word spins a little, yielding, and then parks until
// Notify; it looks again at least once a millisecond. An idle stream takes no CPU
// time. Nothing is allocated once a stream has run a round of its shape.
//
// Everything that a peer wrote is copied out once and checked before it is used
// as a number; what a stage finds wrong it leaves in abi.Status.
package host

import (
	"errors"
	"fmt"

	"moerail/kernels"
)

// Limits of Config.
const (
	MaxQueue = 1024
	MaxSpin  = 1 << 20

	// defaultCacheBytes: two megabytes of second-level cache and as much again of a
	// shared third. Measured in simd.CopyAround.
	defaultCacheBytes = 4 << 20
)

// Config says how streams behave. The zero value is ready to use.
type Config struct {
	// Queue is how many launches a stream holds before a launch waits for room;
	// 0 means 16, at most MaxQueue.
	Queue int
	// Spin is how often a wait yields before it parks; 0 means 64, at most MaxSpin.
	Spin int
	// Passive leaves launches to Sync: the caller's goroutine runs them there, and
	// the stream goroutine is not woken. For callers who always Sync at once.
	Passive bool
	// CacheBytes is how much a stage may write through the caches: one that writes
	// more is read after they have turned over, and writes its rows around them.
	// 0 means 4 MiB.
	CacheBytes uint64
}

// Device is the CPU.
type Device struct {
	cfg Config
}

var _ kernels.Device = (*Device)(nil)

// NewDevice makes a device; it fails when a field of cfg is outside its limits.
func NewDevice(cfg Config) (*Device, error) {
	var errs []error
	if cfg.Queue < 0 || cfg.Queue > MaxQueue {
		errs = append(errs, fmt.Errorf("host: Queue is %d, want 0 to %d", cfg.Queue, MaxQueue))
	}
	if cfg.Spin < 0 || cfg.Spin > MaxSpin {
		errs = append(errs, fmt.Errorf("host: Spin is %d, want 0 to %d", cfg.Spin, MaxSpin))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if cfg.Queue == 0 {
		cfg.Queue = 16
	}
	if cfg.Spin == 0 {
		cfg.Spin = 64
	}
	if cfg.CacheBytes == 0 {
		cfg.CacheBytes = defaultCacheBytes
	}
	return &Device{cfg: cfg}, nil
}

// Name is "host".
func (d *Device) Name() string { return "host" }

// Bumps is true: the stages run in this process.
func (d *Device) Bumps() bool { return true }

// NewStream starts a stream with its goroutine, which ends with Close. A nil bump
// is allowed: nobody is woken.
func (d *Device) NewStream(bump func()) (kernels.Stream, error) {
	if bump == nil {
		bump = func() {}
	}
	s := &Stream{
		cfg:    d.cfg,
		bump:   bump,
		ring:   make([]launch, d.cfg.Queue),
		wake:   make(chan struct{}, 1),
		notify: make(chan struct{}, 1),
		idle:   make(chan struct{}, 1),
		ended:  make(chan struct{}),
		timer:  newTimer(),
	}
	s.run.s = s
	go s.work()
	return s, nil
}

var errClosed = errors.New("host: stream is closed")
