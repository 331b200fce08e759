package peergroup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// hubGrace is how long a rank whose deadline has passed waits for rank 0 to say
// who is missing. Rank 0 counts as missing after that.
const hubGrace = time.Second

// uplink carries a rank's calls to the hub. No method blocks.
type uplink interface {
	contribute(id uint32, key string, blob []byte)
	withdraw(id uint32)
}

// call is one AllGather that waits.
type call struct {
	key   string
	bytes int
	done  chan struct{} // closed when blobs or err is set
	blobs [][]byte
	have  []bool // ranks whose blob is here; nil for a local group
	got   int
	err   error
}

// member is one rank's side of a group: it numbers calls, waits for their
// answers and remembers why the group ended.
type member struct {
	rank, size int
	timeout    time.Duration
	up         uplink

	mu    sync.Mutex
	calls map[uint32]*call // guarded by mu
	next  uint32           // guarded by mu
	bytes int              // guarded by mu; blobs in flight
	err   error            // guarded by mu; why the group is of no more use
}

func newMember(rank, size int, timeout time.Duration) *member {
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	return &member{rank: rank, size: size, timeout: timeout, calls: make(map[uint32]*call)}
}

func (m *member) Rank() int { return m.rank }
func (m *member) Size() int { return m.size }

// AllGather implements Group.
func (m *member) AllGather(ctx context.Context, key string, blob []byte) ([][]byte, error) {
	if err := checkCall(key, blob); err != nil {
		return nil, err
	}
	return m.gather(ctx, key, blob)
}

func (m *member) gather(ctx context.Context, key string, blob []byte) ([][]byte, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.timeout)
		defer cancel()
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("peergroup: rank %d of %d: %q: not started: %w", m.rank, m.size, keyText(key), err)
	}
	id, c, err := m.open(key, len(blob))
	if err != nil {
		return nil, err
	}
	// The hub keeps what it is given until the last rank comes, which may be
	// after this call was given up.
	m.up.contribute(id, key, append([]byte(nil), blob...))

	select {
	case <-c.done:
		return c.blobs, c.err
	case <-ctx.Done():
	}
	// The hub decides: either it has answered already, and every rank has
	// succeeded, or it takes the contribution back and says who is missing.
	m.up.withdraw(id)
	grace := time.NewTimer(hubGrace)
	defer grace.Stop()
	select {
	case <-c.done:
	case <-grace.C:
		m.finish(id, &MissingError{Rank: m.rank, Size: m.size, Key: keyText(key), Missing: []int{0},
			Cause: fmt.Errorf("rank 0 does not answer: %w", ctx.Err())})
		<-c.done
	}
	var missing *MissingError
	if errors.As(c.err, &missing) && missing.Cause == nil {
		missing.Cause = ctx.Err()
	}
	return c.blobs, c.err
}

// open registers a call.
func (m *member) open(key string, bytes int) (uint32, *call, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return 0, nil, m.err
	}
	if len(m.calls) >= MaxInFlight {
		return 0, nil, &LimitError{What: "collectives in flight on one rank", Value: uint64(len(m.calls)) + 1, Max: MaxInFlight}
	}
	if m.bytes+bytes > MaxInFlightBytes {
		return 0, nil, &LimitError{What: "bytes of the collectives in flight on one rank", Value: uint64(m.bytes + bytes), Max: MaxInFlightBytes}
	}
	for m.calls[m.next] != nil {
		m.next++
	}
	id := m.next
	m.next++
	c := &call{key: key, bytes: bytes, done: make(chan struct{})}
	m.calls[id] = c
	m.bytes += bytes
	return id, c, nil
}

// end ends call c. m.mu is held.
func (m *member) end(id uint32, c *call) {
	delete(m.calls, id)
	m.bytes -= c.bytes
	close(c.done)
}

// finish ends call id with err, unless it has ended.
func (m *member) finish(id uint32, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.calls[id]; c != nil {
		c.err, c.blobs = err, nil
		m.end(id, c)
	}
}

// fail ends every call, now and later. The first reason stays.
func (m *member) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.err = err
	}
	for id, c := range m.calls {
		c.err, c.blobs = m.err, nil
		m.end(id, c)
	}
}

// close is fail with ErrClosed, which replaces an earlier reason: after Close
// that is what the caller did last.
func (m *member) close() {
	m.mu.Lock()
	m.err = ErrClosed
	m.mu.Unlock()
	m.fail(ErrClosed)
}

// result implements sink.
func (m *member) result(id uint32, blobs [][]byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.calls[id]
	if c == nil {
		return
	}
	c.blobs = make([][]byte, len(blobs))
	for r, b := range blobs {
		c.blobs[r] = append([]byte{}, b...)
	}
	m.end(id, c)
}

// part takes the blob of one rank; the call ends with the last of them.
func (m *member) part(id uint32, rank int, blob []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.calls[id]
	if c == nil {
		return nil // given up here while the answer was on its way
	}
	if c.have == nil {
		c.have, c.blobs = make([]bool, m.size), make([][]byte, m.size)
	}
	if rank < 0 || rank >= m.size || c.have[rank] {
		return fmt.Errorf("blob of rank %d for %q, want each of 0 to %d once", rank, c.key, m.size-1)
	}
	c.have[rank], c.blobs[rank] = true, blob
	if c.got++; c.got == m.size {
		m.end(id, c)
	}
	return nil
}

// failed implements sink.
func (m *member) failed(id uint32, a absence) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.calls[id]; c != nil {
		c.blobs = nil
		c.err = &MissingError{Rank: m.rank, Size: m.size, Key: keyText(c.key),
			Missing: a.missing, GaveUp: a.gaveUp, Waiting: a.waiting}
		m.end(id, c)
	}
}

// lost implements sink.
func (m *member) lost(e LostError) { m.fail(&e) }
