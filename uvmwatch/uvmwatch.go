// Package uvmwatch gives out words that a device bumps and a proxy polls.
//
// A Block is a plain array of such words, for a poller that knows what each one
// means (the MoE proxy). A Set hands out single words with a callback each, for
// applications (a KvCache sender that follows the layers of a running graph).
//
//	device --store--> word --load--> Poll, on the proxy's thread --> fn(old, new)
//
// Here the words are host memory, written by the CPU in the device's place.
package uvmwatch

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"moerail/internal/mem"
	"moerail/transport"
)

// Block is an array of 8-byte words. Its memory is the block's until Free.
type Block struct {
	memory transport.Memory
	n      int
}

// MaxWords bounds one block.
const MaxWords = 1 << 24

// AllocBlock makes n zeroed words, packed: neighbours are written by the same
// device, and a poll then touches few cache lines.
func AllocBlock(n int) (*Block, error) {
	if n < 1 || n > MaxWords {
		return nil, fmt.Errorf("uvmwatch: %d words, want 1 to %d", n, MaxWords)
	}
	m, err := mem.Alloc(uint64(n) * 8)
	if err != nil {
		return nil, err
	}
	return &Block{memory: m, n: n}, nil
}

// Len is the number of words.
func (b *Block) Len() int { return b.n }

// Addr is the device's address of word i.
func (b *Block) Addr(i int) uint64 { return mem.Addr(b.memory.Host) + uint64(i)*8 }

// Word is word i.
func (b *Block) Word(i int) *atomic.Uint64 { return mem.Word64(b.memory.Host, uint64(i)*8) }

// Free releases the words; no device may write them any more.
func (b *Block) Free() error { return mem.Free(b.memory) }

// ErrFull says that every word of a Set is taken, ErrClosed that the set is gone.
var (
	ErrFull   = errors.New("uvmwatch: no free word")
	ErrClosed = errors.New("uvmwatch: set is closed")
)

// Set is a number of watched words polled together. Poll is called by one
// thread; Alloc and Watcher.Free by any.
type Set struct {
	block *Block

	mu     sync.Mutex
	free   []int
	closed bool
	// slots is replaced, never changed, so that Poll reads it without the lock.
	slots atomic.Pointer[[]*Watcher]
}

// Watcher is one watched word.
type Watcher struct {
	set  *Set
	slot int
	word *atomic.Uint64
	fn   func(old, new uint64)

	old  uint64 // owned by the polling thread
	gone atomic.Bool
}

// NewSet makes a set of at most n words.
func NewSet(n int) (*Set, error) {
	b, err := AllocBlock(n)
	if err != nil {
		return nil, err
	}
	s := &Set{block: b}
	for i := n - 1; i >= 0; i-- {
		s.free = append(s.free, i)
	}
	s.slots.Store(new([]*Watcher))
	return s, nil
}

// Alloc gives out a zeroed word. fn runs on the polling thread each time a poll
// finds another value than before, with the value last reported and the one
// found; several bumps between two polls come as one call. fn must not block.
func (s *Set) Alloc(fn func(old, new uint64)) (*Watcher, error) {
	if fn == nil {
		return nil, errors.New("uvmwatch: no callback")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	if len(s.free) == 0 {
		return nil, fmt.Errorf("%w: all %d are taken", ErrFull, s.block.n)
	}
	i := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	w := &Watcher{set: s, slot: i, word: s.block.Word(i), fn: fn}
	w.word.Store(0)
	next := append(append([]*Watcher(nil), *s.slots.Load()...), w)
	s.slots.Store(&next)
	return w, nil
}

// Addr is the device's address of the word.
func (w *Watcher) Addr() uint64 { return w.set.block.Addr(w.slot) }

// Word is the word, for a host in the device's place.
func (w *Watcher) Word() *atomic.Uint64 { return w.word }

// Free gives the word back; fn may call it. A call of fn that is under way on the
// polling thread may still be running when Free returns, later ones do not
// happen. Freeing twice is harmless.
func (w *Watcher) Free() {
	if w.gone.Swap(true) {
		return
	}
	s := w.set
	s.mu.Lock()
	defer s.mu.Unlock()
	next := make([]*Watcher, 0, len(*s.slots.Load()))
	for _, o := range *s.slots.Load() {
		if o != w {
			next = append(next, o)
		}
	}
	s.slots.Store(&next)
	s.free = append(s.free, w.slot)
}

// Poll looks at every word once and calls back for each that changed. It reports
// whether any did.
func (s *Set) Poll() bool {
	found := false
	for _, w := range *s.slots.Load() {
		// gone is read after the word: a word that was freed and given out again can
		// not be taken for the old watcher's.
		if v := w.word.Load(); v != w.old && !w.gone.Load() {
			old := w.old
			w.old = v
			found = true
			w.fn(old, v)
		}
	}
	return found
}

// Close frees the words. Poll must not be running, and no device may write.
func (s *Set) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.slots.Store(new([]*Watcher))
	return s.block.Free()
}
