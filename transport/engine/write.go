package engine

import (
	"fmt"
	"math"
	"math/bits"

	"moerail/transport"
)

// WriteRequest is one contiguous range. For Read the bytes go the other way and
// Imm and NoImm do not count.
type WriteRequest struct {
	Local     *Region
	LocalOff  uint64
	Remote    *RemoteRegion
	RemoteOff uint64
	Len       uint64
	Imm       transport.Imm
	NoImm     bool
	NICs      NICs
}

// Write copies Len bytes to a peer, split over the chosen NICs byte for byte.
// The receiver counts WriteImms(Len, number of NICs) immediates. A write of
// nothing without an immediate ends at once.
//
// The local range must not change until the transfer has ended.
func (e *Engine) Write(r WriteRequest, done Done) (Handle, error) {
	op := transport.OpWriteImm
	if r.NoImm {
		op = transport.OpWrite
	}
	return e.transferRange(op, r, done)
}

// Read copies Len bytes from a peer into local memory; once the transfer has
// ended they are there.
func (e *Engine) Read(r WriteRequest, done Done) (Handle, error) {
	for i, l := range e.limits {
		if !l.Read {
			return Handle{}, fmt.Errorf("engine: read on NIC %s: %w", e.w.nics[i].name, transport.ErrUnsupported)
		}
	}
	return e.transferRange(transport.OpRead, r, done)
}

func (e *Engine) checkEnds(l *Region, r *RemoteRegion) error {
	if l == nil || l.e != e {
		return fmt.Errorf("%w: local region", ErrForeign)
	}
	if r == nil || r.e != e {
		return fmt.Errorf("%w: remote region", ErrForeign)
	}
	return nil
}

func (e *Engine) transferRange(op transport.Opcode, r WriteRequest, done Done) (Handle, error) {
	if err := e.checkEnds(r.Local, r.Remote); err != nil {
		return Handle{}, err
	}
	if err := checkRange("local", r.LocalOff, r.Len, r.Local.size); err != nil {
		return Handle{}, err
	}
	if err := checkRange("remote", r.RemoteOff, r.Len, r.Remote.size); err != nil {
		return Handle{}, err
	}
	first, n, err := e.pick(r.NICs)
	if err != nil {
		return Handle{}, err
	}
	x := e.newTransfer(shapeRange, op, done)
	x.local, x.remote, x.imm = r.Local, r.Remote, r.Imm
	x.localOff, x.remoteOff = r.LocalOff, r.RemoteOff
	if r.Len == 0 {
		if op == transport.OpWriteImm {
			j := &x.jobs[first]
			j.lo, j.hi, j.count = 0, 0, 1
		}
		return e.start(x)
	}
	for k := 0; k < n; k++ {
		j := &x.jobs[(first+k)%len(e.limits)]
		j.lo, j.hi = shard(r.Len, n, k)
		j.count = int(ceilDiv(j.hi-j.lo, e.maxMsg))
	}
	return e.start(x)
}

// PagesRequest is a list of pages of equal length: page i goes from LocalOff +
// LocalStride*LocalPages[i] to RemoteOff + RemoteStride*RemotePages[i].
type PagesRequest struct {
	Local        *Region
	LocalOff     uint64
	LocalStride  uint64
	LocalPages   []uint32
	Remote       *RemoteRegion
	RemoteOff    uint64
	RemoteStride uint64
	RemotePages  []uint32
	PageLen      uint64
	Imm          transport.Imm
	NoImm        bool
	NICs         NICs
}

// WritePages writes pages, one operation and, unless NoImm, one immediate each,
// dealt to the chosen NICs in contiguous runs. The lists are the caller's again
// at return; the pages must not change until the transfer has ended. No pages
// end at once.
func (e *Engine) WritePages(r PagesRequest, done Done) (Handle, error) {
	if err := e.checkEnds(r.Local, r.Remote); err != nil {
		return Handle{}, err
	}
	if len(r.LocalPages) != len(r.RemotePages) {
		return Handle{}, fmt.Errorf("%w: %d local pages and %d remote ones", ErrArgument, len(r.LocalPages), len(r.RemotePages))
	}
	if r.PageLen > e.maxMsg {
		return Handle{}, fmt.Errorf("%w: page of %d bytes, one operation carries at most %d", ErrArgument, r.PageLen, e.maxMsg)
	}
	if err := checkPages("local", r.LocalPages, r.LocalOff, r.LocalStride, r.PageLen, r.Local.size); err != nil {
		return Handle{}, err
	}
	if err := checkPages("remote", r.RemotePages, r.RemoteOff, r.RemoteStride, r.PageLen, r.Remote.size); err != nil {
		return Handle{}, err
	}
	first, n, err := e.pick(r.NICs)
	if err != nil {
		return Handle{}, err
	}
	op := transport.OpWriteImm
	if r.NoImm {
		op = transport.OpWrite
	}
	x := e.newTransfer(shapePages, op, done)
	x.local, x.remote, x.imm = r.Local, r.Remote, r.Imm
	x.localOff, x.localStride = r.LocalOff, r.LocalStride
	x.remoteOff, x.remoteStride, x.pageLen = r.RemoteOff, r.RemoteStride, r.PageLen
	if len(r.LocalPages) > 0 && (r.PageLen > 0 || !r.NoImm) {
		x.localPages = append(x.localPages[:0], r.LocalPages...)
		x.remotePages = append(x.remotePages[:0], r.RemotePages...)
		for k := 0; k < n; k++ {
			j := &x.jobs[(first+k)%len(e.limits)]
			lo, hi := run(len(r.LocalPages), n, k)
			j.lo, j.hi, j.count = uint64(lo), uint64(hi), hi-lo
		}
	}
	return e.start(x)
}

// checkPages checks the page that lies furthest out.
func checkPages(what string, pages []uint32, off, stride, length, size uint64) error {
	if len(pages) == 0 {
		return nil
	}
	var last uint32
	for _, p := range pages {
		last = max(last, p)
	}
	over, at := bits.Mul64(uint64(last), stride)
	if over != 0 || at > math.MaxUint64-off {
		return fmt.Errorf("%w: %s: page %d with stride %d at %d of %d bytes", transport.ErrOutOfRange, what, last, stride, off, size)
	}
	if err := checkRange(what, off+at, length, size); err != nil {
		return fmt.Errorf("page %d: %w", last, err)
	}
	return nil
}

// AtomicRequest works on the 8 bytes at RemoteOff, a multiple of 8. The old
// value lands at LocalOff, also a multiple of 8, before the transfer ends.
type AtomicRequest struct {
	Local     *Region
	LocalOff  uint64
	Remote    *RemoteRegion
	RemoteOff uint64
	Operand   uint64 // addend, or the value to swap in
	Compare   uint64 // CompareSwap only
	// NICs must choose one NIC. Where a word is changed through several NICs
	// their atomics need not exclude each other: pin such words to one.
	NICs NICs
}

// CompareSwap stores Operand if the word equals Compare.
func (e *Engine) CompareSwap(r AtomicRequest, done Done) (Handle, error) {
	return e.atomic(transport.OpCompareSwap, r, done)
}

// FetchAdd adds Operand to the word.
func (e *Engine) FetchAdd(r AtomicRequest, done Done) (Handle, error) {
	return e.atomic(transport.OpFetchAdd, r, done)
}

func (e *Engine) atomic(op transport.Opcode, r AtomicRequest, done Done) (Handle, error) {
	if err := e.checkEnds(r.Local, r.Remote); err != nil {
		return Handle{}, err
	}
	if r.LocalOff%8 != 0 || r.RemoteOff%8 != 0 {
		return Handle{}, fmt.Errorf("%w: atomic at local offset %d, remote offset %d, want multiples of 8", ErrArgument, r.LocalOff, r.RemoteOff)
	}
	if err := checkRange("local", r.LocalOff, 8, r.Local.size); err != nil {
		return Handle{}, err
	}
	if err := checkRange("remote", r.RemoteOff, 8, r.Remote.size); err != nil {
		return Handle{}, err
	}
	first, n, err := e.pick(r.NICs)
	if err != nil {
		return Handle{}, err
	}
	if n != 1 {
		return Handle{}, fmt.Errorf("%w: atomic over %d NICs, want 1", ErrArgument, n)
	}
	if !e.limits[first].Atomic {
		return Handle{}, fmt.Errorf("engine: %s on NIC %s: %w", op, e.w.nics[first].name, transport.ErrUnsupported)
	}
	x := e.newTransfer(shapeAtomic, op, done)
	x.local, x.remote = r.Local, r.Remote
	x.localOff, x.remoteOff, x.operand, x.compare = r.LocalOff, r.RemoteOff, r.Operand, r.Compare
	x.jobs[first].count = 1
	return e.start(x)
}
