package micro

import (
	"context"
	"errors"
	"fmt"
	"time"

	"moerail/transport"
	"moerail/transport/engine"
)

// opened is an engine with a registered region and what the other rank has.
type opened struct {
	rank   int
	engine *engine.Engine
	mem    transport.Memory
	local  *engine.Region
	theirs engine.Descriptor
}

func openEngine(ctx context.Context, cfg *Config, r Rank) (o *opened, err error) {
	o = &opened{rank: r.Group.Rank()}
	var doms []transport.Domain
	for _, name := range r.NICs {
		d, err := r.Provider.Open(name, transport.DomainConfig{})
		if err != nil {
			return o, errors.Join(err, closeAll(doms))
		}
		doms = append(doms, d)
	}
	if o.engine, err = engine.New(engine.Config{Provider: r.Provider, Domains: doms, CPU: r.CPU, Poll: engine.PollPolicy{NoPark: cfg.Poll == PollSpin}}); err != nil {
		return o, errors.Join(err, closeAll(doms))
	}
	if o.mem, err = o.engine.Alloc(2 * cfg.half()); err != nil {
		return o, errors.Join(err, o.close())
	}
	var desc engine.Descriptor
	if o.local, desc, err = o.engine.Register(o.mem, transport.AccessAll); err != nil {
		return o, errors.Join(err, o.close())
	}
	mine, err := desc.MarshalBinary()
	if err != nil {
		return o, errors.Join(err, o.close())
	}
	all, err := r.Group.AllGather(ctx, "micro/engine", mine)
	if err == nil {
		o.theirs, err = engine.ParseDescriptor(all[1-o.rank])
	}
	if err != nil {
		return o, errors.Join(err, o.close())
	}
	return o, nil
}

func closeAll(doms []transport.Domain) error {
	var errs []error
	for _, d := range doms {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

func (o *opened) region() []byte { return o.mem.Host }

func (o *opened) close() error {
	err := o.engine.Close()
	<-o.engine.Drained()
	if o.mem.Host != nil {
		err = errors.Join(err, o.engine.Free(o.mem))
	}
	return err
}

// await only calls fn: the worker keeps the link going.
func (o *opened) await(fn func() error) error { return fn() }

// engineLink is an application's goroutine.
type engineLink struct {
	*opened
	remote *engine.RemoteRegion
	imms   *engine.ImmCounter
	seen   uint64 // immediates waited for
	ended  engine.Counter
	sent   uint64 // transfers
	nics   engine.NICs
	numNIC int
}

func newEngineLink(ctx context.Context, cfg *Config, r Rank) (*engineLink, error) {
	o, err := openEngine(ctx, cfg, r)
	if err != nil {
		return nil, err
	}
	e := &engineLink{opened: o, nics: engine.AllNICs, numNIC: cfg.NICs}
	if e.remote, err = o.engine.Import(o.theirs); err == nil {
		e.imms, err = o.engine.ImmCounter(imm)
	}
	if err != nil {
		return nil, errors.Join(err, o.close())
	}
	return e, nil
}

func (e *engineLink) write(local, remote, n uint64) error {
	_, err := e.engine.Write(engine.WriteRequest{Local: e.local, LocalOff: local, Remote: e.remote, RemoteOff: remote, Len: n, Imm: imm,
		NICs: e.nics}, engine.Done{Counter: &e.ended})
	e.sent++
	return err
}

// expect waits for the immediates of n more writes of size bytes.
func (e *engineLink) expect(ctx context.Context, size, n uint64) error {
	e.seen += n * e.engine.WriteImms(size, e.numNIC)
	if err := e.imms.Wait(ctx, e.seen); err != nil {
		// Why nothing came is more often known to the own writes.
		return errors.Join(e.ended.Err(), err)
	}
	return nil
}

func (e *engineLink) pingpong(ctx context.Context, l *layout, skip int, trips []int64, ready syncFunc) error {
	if err := ready(); err != nil {
		return err
	}
	begin := time.Now()
	for i := -skip; i < len(trips); i++ {
		if e.rank == 1 {
			if err := e.expect(ctx, l.size, 1); err != nil {
				return err
			}
		}
		t := time.Since(begin)
		if err := e.write(l.local(0), l.remote(0), l.size); err != nil {
			return err
		}
		if e.rank == 1 {
			continue
		}
		if err := e.expect(ctx, l.size, 1); err != nil {
			return err
		}
		if i >= 0 {
			trips[i] = int64(time.Since(begin) - t)
		}
	}
	return e.ended.Wait(ctx, e.sent)
}

func (e *engineLink) burst(ctx context.Context, l *layout, n, window int, ready syncFunc) (time.Duration, error) {
	if err := ready(); err != nil {
		return 0, err
	}
	begin := time.Now()
	if e.rank == 1 {
		if err := e.expect(ctx, l.size, uint64(n)); err != nil {
			return 0, err
		}
		if err := e.write(l.local(0), l.remote(0), 0); err != nil {
			return 0, err
		}
		return time.Since(begin), e.ended.Wait(ctx, e.sent)
	}
	for i := range n {
		if e.sent-e.ended.Count() >= uint64(window) {
			// Half a window at a time: a wake for each write costs more than the write.
			if err := e.ended.Wait(ctx, e.sent-uint64(window)/2); err != nil {
				return 0, err
			}
		}
		s := i % l.slots
		if err := e.write(l.local(s), l.remote(s), l.size); err != nil {
			return 0, err
		}
	}
	if err := e.expect(ctx, 0, 1); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	if err := e.ended.Wait(ctx, e.sent); err != nil {
		return 0, err
	}
	if stray := e.engine.Stats().StrayCompletions; stray > 0 {
		return 0, fmt.Errorf("%d completions of nothing that was in flight", stray)
	}
	return took, nil
}
