package engine

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"moerail/transport"
)

// Config describes an engine. The engine keeps a copy.
type Config struct {
	// Provider gives and takes memory (Alloc, Free, message buffers). It is not
	// owned and must outlive the engine.
	Provider transport.Provider
	// Domains are 1 to MaxNICs opened NICs. Once New has returned without error the engine owns
	// and closes them; nobody else may use them from then on.
	Domains []transport.Domain
	// CPU >= 0 locks the worker to an OS thread pinned to that CPU. -1 makes it
	// an ordinary goroutine, for more workers than cores.
	CPU int
	// Poll says what an idle worker does.
	Poll PollPolicy
	// MaxEarlyImms bounds how many different immediates are kept that arrive
	// before anybody claims or counts them; default 65536.
	MaxEarlyImms int
}

func (c *Config) validate() error {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.Provider == nil {
		bad("Provider is nil")
	}
	if len(c.Domains) < 1 || len(c.Domains) > MaxNICs {
		bad("%d domains, want 1 to %d", len(c.Domains), MaxNICs)
	}
	for i, d := range c.Domains {
		if d == nil {
			bad("domain %d is nil", i)
			continue
		}
		if l := d.Limits(); l.ImmBytes < 4 {
			bad("NIC %s carries %d bytes of immediate, want 4: %w", d.Name(), l.ImmBytes, transport.ErrUnsupported)
		}
		for _, o := range c.Domains[:i] {
			if o == d {
				bad("NIC %s is given twice", d.Name())
			}
		}
	}
	if c.CPU < -1 || c.CPU >= maxCPU {
		bad("CPU %d, want -1 to %d", c.CPU, maxCPU-1)
	}
	if c.Poll.MaxPark < 0 || c.Poll.MaxPark > maxMaxPark {
		bad("Poll.MaxPark %v, want 0 to %v", c.Poll.MaxPark, maxMaxPark)
	}
	if c.MaxEarlyImms < 0 {
		bad("MaxEarlyImms %d, want 0 or more", c.MaxEarlyImms)
	}
	if len(faults) > 0 {
		return fmt.Errorf("%w: %w", ErrConfig, errors.Join(faults...))
	}
	return nil
}

// Engine moves data over its NICs. Its methods may be called from any goroutine
// except, where they wait for the worker, the worker itself.
type Engine struct {
	cfg      Config
	adaptive bool // the poll policy is the default
	addr     Address
	maxMsg   uint64 // bytes of one operation on every NIC
	limits   []transport.Limits
	w        *Worker
	stats    counters
	done     callbacks
	pool     sync.Pool // of *transfer
	rotate   atomic.Uint32
	closing  sync.Once

	cmds   queue
	stop   atomic.Bool
	parked atomic.Bool
	wake   chan struct{} // capacity 1
	recall atomic.Bool   // some transfer was cancelled: the worker looks for it

	inboxed atomic.Bool
	inboxMu sync.Mutex
	inbox   []*call // guarded by inboxMu
	shut    bool    // guarded by inboxMu: no more calls

	dead     atomic.Bool   // the worker takes no more commands
	deadMu   sync.Mutex    // consumer of cmds once dead
	ended    chan struct{} // closed when the worker has ended and the domains are closed
	closeErr error         // valid once ended is closed
	drained  chan struct{} // closed after the last callback that was due at Close
}

type call struct {
	fn   func(*Worker)
	done chan bool // capacity 1; false: not run
}

// New starts an engine. On error the domains stay the caller's. All faults of
// the configuration are reported at once, wrapped in ErrConfig.
func New(cfg Config) (*Engine, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.Domains = append([]transport.Domain(nil), cfg.Domains...)
	adaptive := cfg.Poll.Spin == 0 && cfg.Poll.Yield == 0
	cfg.Poll = cfg.Poll.withDefaults(cfg.CPU >= 0)
	if cfg.MaxEarlyImms == 0 {
		cfg.MaxEarlyImms = 1 << 16
	}
	e := &Engine{
		cfg: cfg, adaptive: adaptive, maxMsg: 1 << 62, wake: make(chan struct{}, 1),
		ended: make(chan struct{}), drained: make(chan struct{}),
	}
	e.cmds.init()
	e.done.init()
	e.pool.New = func() any { return newTransfer(e) }
	var gen [8]byte
	if _, err := rand.Read(gen[:]); err != nil {
		return nil, fmt.Errorf("engine: generation: %w", err)
	}
	e.addr.Generation = binary.LittleEndian.Uint64(gen[:])
	w := newWorker(e)
	for i, d := range cfg.Domains {
		n := &nic{index: i, name: d.Name(), dom: d, completions: make([]transport.Completion, pollBatch)}
		if wk, ok := d.(transport.Waker); ok {
			wk.SetWake(e.Wake)
			n.wakes = true
		}
		if wt, ok := d.(transport.Waiter); ok && wt.WaitFD() >= 0 {
			n.waiter = wt
		}
		l := d.Limits()
		if l.MaxMessage > 0 {
			e.maxMsg = min(e.maxMsg, l.MaxMessage)
		}
		e.limits = append(e.limits, l)
		e.addr.NICs = append(e.addr.NICs, append(transport.Address(nil), d.Addr()...))
		w.nics = append(w.nics, n)
	}
	e.w = w
	if err := w.doze.open(w.nics); err != nil {
		return nil, err
	}
	started := make(chan error, 1)
	go w.main(started)
	if err := <-started; err != nil {
		return nil, err
	}
	return e, nil
}

// main pins the thread, if asked to, works until Close, and clears up.
func (w *Worker) main(started chan<- error) {
	if w.e.cfg.CPU >= 0 {
		runtime.LockOSThread() // never unlocked: the pinned thread ends with the worker
		if err := pinThread(w.e.cfg.CPU); err != nil {
			w.doze.close()
			started <- err
			return
		}
	}
	w.timer = time.NewTimer(time.Hour)
	w.timer.Stop()
	started <- nil
	w.loop()
	w.shutdown()
}

// Addr is what peers need to reach this engine.
func (e *Engine) Addr() Address { return e.addr.clone() }

// NumNICs is the number of NICs.
func (e *Engine) NumNICs() int { return len(e.limits) }

// Limits are those of NIC i, zero if there is no such NIC.
func (e *Engine) Limits(i int) transport.Limits {
	if i < 0 || i >= len(e.limits) {
		return transport.Limits{}
	}
	return e.limits[i]
}

// Fabric is the provider's name.
func (e *Engine) Fabric() string { return e.cfg.Provider.Name() }

// Alloc returns zeroed memory that can be registered; Free gives it back. They
// are the provider's.
func (e *Engine) Alloc(size uint64) (transport.Memory, error) { return e.cfg.Provider.Alloc(size) }

// Free releases what Alloc returned; no region over it may be open.
func (e *Engine) Free(m transport.Memory) error { return e.cfg.Provider.Free(m) }

// Call runs fn on the worker thread, between turns, and waits for it. It fails
// with ErrClosed, fn not run, once the engine is closing. Not for the worker
// thread itself, which would wait for itself.
func (e *Engine) Call(fn func(w *Worker)) error {
	c := &call{fn: fn, done: make(chan bool, 1)}
	e.inboxMu.Lock()
	if e.shut {
		e.inboxMu.Unlock()
		return ErrClosed
	}
	e.inbox = append(e.inbox, c)
	e.inboxMu.Unlock()
	e.inboxed.Store(true)
	e.Wake()
	if !<-c.done {
		return ErrClosed
	}
	return nil
}

// Close stops the worker, closes the domains and ends everything pending with
// ErrClosed: transfers, waits, expectations, the receive pool. It returns once
// the worker has gone; callbacks that were due may still run after it (Close may
// be called from one) until Drained. In-flight operations are dropped, not
// flushed. Closing twice, or at once from several goroutines, is harmless; each
// call returns the same error, that of the domains.
//
// Memory registered with the engine may be freed after Close.
func (e *Engine) Close() error {
	e.closing.Do(func() {
		e.stop.Store(true)
		e.Wake()
		// A worker that is about to park looks at stop after it said so.
	})
	<-e.ended
	return e.closeErr
}

// Drained is closed once the engine has ended and the callbacks that were due
// have returned.
func (e *Engine) Drained() <-chan struct{} { return e.drained }

// submit hands an item to the worker, or ends it when there is none any more.
func (e *Engine) submit(n *node) {
	e.cmds.push(n)
	if e.parked.Load() {
		e.Wake()
	}
	if e.dead.Load() {
		e.drainDead()
	}
}

// drainDead ends what was submitted behind the worker's back. Whoever pushed
// before the worker declared itself dead is seen by the worker's own drain,
// whoever pushed later sees dead; so nothing is left behind.
func (e *Engine) drainDead() {
	e.deadMu.Lock()
	defer e.deadMu.Unlock()
	for !e.cmds.idle() {
		n := e.cmds.pop()
		if n == nil { // a producer is in the middle of its push, and will come here
			return
		}
		n.owner.onWorker(e.w)
	}
}
