//go:build libfabric && cgo

package efa

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"moerail/internal/fabric"
	"moerail/internal/mem"
	"moerail/transport"
)

// A provider's word is not enough: libfabric 1.17's "net" offers atomics and
// answers ENOSYS to each, and data beside a write is known to get lost. So each
// kind of operation is done once, against oneself. What is silent for
// probePatience does not work, unless nothing works at all: then it says nothing
// of the provider (a network may keep a NIC from reaching itself).
const (
	probePatience = 500 * time.Millisecond
	probeBytes    = 4096
)

// try finds which features of o work, and takes away those that do not.
func (o *offer) try(lib *fabric.Library) (err error) {
	d, err := openDomain(lib, o, o.info.Domain, transport.DomainConfig{MaxSend: 8, MaxRecv: 8}, probePatience, noPiece)
	if err != nil {
		return fmt.Errorf("open %s of %s: %w", o.info.Domain, o.info.Provider, err)
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	m, err := mem.Alloc(probeBytes)
	if err != nil {
		return err
	}
	defer func() { // after the domain is closed
		err = errors.Join(err, d.Close(), mem.Free(m))
	}()
	p := &probe{d: d, m: m}
	if p.reg, err = d.Register(m, transport.AccessAll); err != nil {
		return err
	}
	if p.peer, err = d.AddPeer(d.Addr()); err != nil {
		return err
	}
	if p.remote, err = d.Import(p.peer, p.reg.RemoteKey(), m.Size); err != nil {
		return err
	}
	works := p.write()
	if errors.Is(works, errSilent) {
		o.missing = append(o.missing, "nothing was tried: the device does not reach itself, so features are as the provider says")
		return nil
	}
	if works != nil {
		return fmt.Errorf("a write over %s of %s: %w", o.info.Domain, o.info.Provider, works)
	}
	o.features.Tried = true
	for _, f := range []struct {
		name    string
		offered bool
		take    func()
		run     func() error
	}{
		{"immediates", o.features.ImmBytes > 0, func() { o.features.ImmBytes = 0 }, p.imm},
		{"reads", true, func() { o.features.Read = false }, p.read},
		{"atomics", o.features.Atomic, func() { o.features.Atomic = false }, p.atomics},
	} {
		if !f.offered {
			continue
		}
		if err := f.run(); errors.Is(err, errBroken) {
			return err
		} else if err != nil {
			f.take()
			o.lacks(f.name, err.Error())
		}
	}
	return nil
}

var (
	errSilent = errors.New("offered, but nothing came of it")
	errBroken = errors.New("the domain broke while it was tried") // no news of a feature
)

type probe struct {
	d      *domain
	m      transport.Memory
	reg    transport.Region
	peer   transport.Peer
	remote transport.Remote
}

// run posts one operation from offset 0 to offset 1024 and waits until it has
// ended and seen tells that it had its effect.
func (p *probe) run(op transport.Opcode, n uint64, operand, compare uint64, seen func() bool) error {
	wr := transport.WorkRequest{
		Op: op, Peer: p.peer, Local: p.reg.LKey(), Remote: p.remote, Imm: 0x80c0ffee, RemoteOff: 1024, Len: n, Operand: operand, Compare: compare,
	}
	if _, err := p.d.Post([]transport.WorkRequest{wr}); err != nil {
		return err
	}
	var out [8]transport.Completion
	ended, arrived := false, op != transport.OpWriteImm
	for start := time.Now(); !ended || !arrived || !seen(); runtime.Gosched() {
		k, err := p.d.Poll(out[:])
		if err != nil {
			return fmt.Errorf("%w: %w", errBroken, err)
		}
		for _, c := range out[:k] {
			switch {
			case c.Op == transport.OpImm:
				if c.Imm != wr.Imm {
					return fmt.Errorf("immediate %#x arrived as %#x", wr.Imm, c.Imm)
				}
				arrived = true
			case c.Status == transport.StatusPeerLost && c.Vendor == fabric.ErrnoTimedOut:
				return errSilent
			case c.Status != transport.StatusOK:
				return fmt.Errorf("offered, but it ends as %v (%s)", c.Status, p.d.errnoText(c.Vendor))
			default:
				ended = true
			}
		}
		if k == 0 && time.Since(start) > probePatience+probePatience/2 {
			return errSilent
		}
	}
	return nil
}

func (d *domain) errnoText(errno uint32) string { return d.info.ErrnoText(errno) }

func (p *probe) words() (local, remote func() uint64) {
	return mem.Word64(p.m.Host, 0).Load, mem.Word64(p.m.Host, 1024).Load
}

func (p *probe) write() error {
	_, remote := p.words()
	mem.Word64(p.m.Host, 0).Store(11)
	return p.run(transport.OpWrite, 8, 0, 0, func() bool { return remote() == 11 })
}

func (p *probe) imm() error {
	_, remote := p.words()
	mem.Word64(p.m.Host, 0).Store(12)
	p.d.limits.ImmBytes = 4
	return p.run(transport.OpWriteImm, 8, 0, 0, func() bool { return remote() == 12 })
}

func (p *probe) read() error {
	local, _ := p.words()
	mem.Word64(p.m.Host, 1024).Store(13)
	return p.run(transport.OpRead, 8, 0, 0, func() bool { return local() == 13 })
}

func (p *probe) atomics() error {
	local, remote := p.words()
	mem.Word64(p.m.Host, 1024).Store(14)
	if err := p.run(transport.OpFetchAdd, 8, 3, 0, func() bool { return local() == 14 && remote() == 17 }); err != nil {
		return err
	}
	return p.run(transport.OpCompareSwap, 8, 20, 17, func() bool { return local() == 17 && remote() == 20 })
}
