package micro

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"moerail/transport"
	"moerail/transport/engine"
)

// domainLink is the provider alone, driven by one locked thread.
type domainLink struct {
	rank     int
	provider transport.Provider
	dom      transport.Domain
	mem      transport.Memory
	peer     transport.Peer
	local    transport.LKey
	remote   transport.Remote
	release  func() // the thread

	window                uint64
	posted, done, arrived uint64
	quiet                 uint32 // polls in a row that found nothing
	turns                 uint64
	yielded               time.Time
	wrs                   [postBatch]transport.WorkRequest
	found                 [64]transport.Completion
}

// postBatch is how many writes of a stream are shown to a provider at once; the
// engine does the same.
const postBatch = 32

func newDomainLink(ctx context.Context, cfg *Config, r Rank) (_ *domainLink, err error) {
	d := &domainLink{rank: r.Group.Rank(), provider: r.Provider, window: uint64(cfg.Window), release: func() {}}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if d.dom, err = r.Provider.Open(r.NICs[0], transport.DomainConfig{}); err != nil {
		return d, err
	}
	if l := d.dom.Limits(); l.ImmBytes < 4 {
		return d, fmt.Errorf("NIC %s carries %d bytes of immediate, want 4: %w", d.dom.Name(), l.ImmBytes, transport.ErrUnsupported)
	} else if m := l.MaxMessage; m > 0 && cfg.half() > m {
		for _, size := range cfg.Sizes {
			if size > m {
				return d, &ConfigError{"sizes", fmt.Sprintf("has %d bytes, NIC %s carries at most %d in one write", size, d.dom.Name(), m)}
			}
		}
	}
	if d.mem, err = r.Provider.Alloc(2 * cfg.half()); err != nil {
		return d, err
	}
	reg, err := d.dom.Register(d.mem, transport.AccessAll)
	if err != nil {
		return d, err
	}
	d.local = reg.LKey()
	mine, err := engine.Descriptor{Size: reg.Size(), NICs: []engine.NICKey{{Addr: d.dom.Addr(), Key: reg.RemoteKey()}}}.MarshalBinary()
	if err != nil {
		return d, err
	}
	var theirs engine.Descriptor
	err = d.await(func() error {
		all, err := r.Group.AllGather(ctx, "micro/domain", mine)
		if err == nil {
			theirs, err = engine.ParseDescriptor(all[1-d.rank])
		}
		return err
	})
	if err != nil {
		return d, err
	}
	if len(theirs.NICs) != 1 {
		return d, fmt.Errorf("rank %d describes %d NICs, want 1", 1-d.rank, len(theirs.NICs))
	}
	if d.peer, err = d.dom.AddPeer(theirs.NICs[0].Addr); err != nil {
		return d, err
	}
	if d.remote, err = d.dom.Import(d.peer, theirs.NICs[0].Key, theirs.Size); err != nil {
		return d, err
	}
	for i := range d.wrs {
		d.wrs[i] = transport.WorkRequest{Op: transport.OpWriteImm, Imm: imm, Peer: d.peer, Local: d.local, Remote: d.remote}
	}
	return d, d.pin(r.CPU)
}

// pin locks the calling goroutine, which is the one that measures, to one thread.
func (d *domainLink) pin(cpu int) error {
	runtime.LockOSThread()
	d.release = runtime.UnlockOSThread
	if cpu < 0 {
		return nil
	}
	var before, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("cores of this thread: %w", err)
	}
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("binding to core %d: %w", cpu, err)
	}
	d.release = func() {
		_ = unix.SchedSetaffinity(0, &before)
		runtime.UnlockOSThread()
	}
	return nil
}

func (d *domainLink) region() []byte { return d.mem.Host }

func (d *domainLink) close() error {
	defer d.release()
	var errs []error
	if d.dom != nil {
		errs = append(errs, d.dom.Close())
	}
	if d.mem.Host != nil {
		errs = append(errs, d.provider.Free(d.mem))
	}
	d.dom, d.mem, d.release = nil, transport.Memory{}, func() {}
	return errors.Join(errs...)
}

// The thread yields as the worker of an engine does that is pinned, and for the same
// reason: see transport/engine/poll.go.
const (
	turnsPerClock = 256
	yieldEvery    = 4 * time.Millisecond
)

func (d *domainLink) yield() {
	if now := time.Now(); now.Sub(d.yielded) >= yieldEvery {
		runtime.Gosched()
		d.yielded = now
	}
}

// looksPerPatience is how many empty polls go by between looks at the context.
const looksPerPatience = 1 << 16

func (d *domainLink) poll(ctx context.Context) error {
	if d.turns++; d.turns%turnsPerClock == 0 {
		d.yield()
	}
	n, err := d.dom.Poll(d.found[:])
	for i := range d.found[:n] {
		switch c := &d.found[i]; {
		case c.Op == transport.OpImm && c.Imm != imm:
			return fmt.Errorf("not verified: immediate %#x arrived, want %#x", c.Imm, imm)
		case c.Op == transport.OpImm:
			d.arrived++
		case c.Status != transport.StatusOK:
			return fmt.Errorf("%s: %s (vendor %#x)", c.Op, c.Status, c.Vendor)
		default:
			d.done++
		}
	}
	if err != nil {
		return fmt.Errorf("poll: %w", err)
	}
	if n > 0 {
		d.quiet = 0
	} else if d.quiet++; d.quiet%looksPerPatience == 0 {
		return ctx.Err()
	}
	return nil
}

// post shows the first n of wrs to the provider and returns how many it took.
func (d *domainLink) post(n int) (int, error) {
	k, err := d.dom.Post(d.wrs[:n])
	d.posted += uint64(k)
	if k < n && err != nil && !errors.Is(err, transport.ErrAgain) {
		return k, fmt.Errorf("post: %w", err)
	}
	return k, nil
}

// write posts one write.
func (d *domainLink) write(ctx context.Context, local, remote, n uint64) error {
	for d.posted-d.done >= d.window {
		if err := d.poll(ctx); err != nil {
			return err
		}
	}
	d.wrs[0].LocalOff, d.wrs[0].RemoteOff, d.wrs[0].Len = local, remote, n
	for {
		if k, err := d.post(1); k == 1 || err != nil {
			return err
		}
		if err := d.poll(ctx); err != nil {
			return err
		}
	}
}

func (d *domainLink) awaitArrived(ctx context.Context, n uint64) error {
	for d.arrived < n {
		if err := d.poll(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *domainLink) drain(ctx context.Context) error {
	for d.done < d.posted {
		if err := d.poll(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *domainLink) await(fn func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- fn() }()
	for {
		select {
		case err := <-ended:
			return err
		default:
		}
		if err := d.poll(context.Background()); err != nil {
			return err // the goroutine ends with its group or its context
		}
		runtime.Gosched()
	}
}

func (d *domainLink) pingpong(ctx context.Context, l *layout, skip int, trips []int64, ready syncFunc) error {
	seen := d.arrived
	if err := ready(); err != nil {
		return err
	}
	begin := time.Now()
	for i := -skip; i < len(trips); i++ {
		seen++
		if d.rank == 1 {
			if err := d.awaitArrived(ctx, seen); err != nil {
				return err
			}
		}
		t := time.Since(begin)
		if err := d.write(ctx, l.local(0), l.remote(0), l.size); err != nil {
			return err
		}
		if d.rank == 1 {
			continue
		}
		if err := d.awaitArrived(ctx, seen); err != nil {
			return err
		}
		if i >= 0 {
			trips[i] = int64(time.Since(begin) - t)
		}
	}
	return d.drain(ctx)
}

func (d *domainLink) burst(ctx context.Context, l *layout, n, window int, ready syncFunc) (time.Duration, error) {
	seen := d.arrived
	if err := ready(); err != nil {
		return 0, err
	}
	begin := time.Now()
	if d.rank == 1 {
		if err := d.awaitArrived(ctx, seen+uint64(n)); err != nil {
			return 0, err
		}
		if err := d.write(ctx, l.local(0), l.remote(0), 0); err != nil {
			return 0, err
		}
		return time.Since(begin), d.drain(ctx)
	}
	slot := 0
	for sent := 0; sent < n; {
		batch := min(n-sent, postBatch, window-int(d.posted-d.done))
		for i := range batch {
			s := (slot + i) % l.slots
			d.wrs[i].LocalOff, d.wrs[i].RemoteOff, d.wrs[i].Len = l.local(s), l.remote(s), l.size
		}
		if batch > 0 {
			k, err := d.post(batch)
			if err != nil {
				return 0, err
			}
			sent += k
			slot = (slot + k) % l.slots
		}
		if err := d.poll(ctx); err != nil {
			return 0, err
		}
	}
	if err := d.awaitArrived(ctx, seen+1); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	return took, d.drain(ctx)
}
