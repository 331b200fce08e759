package peergroup

import (
	"fmt"
	"sync"
)

// joinKey is the collective that assembles a TCP group. Callers cannot use it:
// checkCall refuses keys that start with a zero byte.
const joinKey = "\x00join"

// maxWaitingKeys bounds the keys reported per missing rank, maxWaitingRanks the
// ranks they are reported for.
const (
	maxWaitingKeys  = 4
	maxWaitingRanks = 16
)

// sink is how the hub answers one rank. Its methods are called under the hub's
// lock: they must not block, nor call the hub.
type sink interface {
	// result completes call id. The blobs are shared between ranks: read only.
	result(id uint32, blobs [][]byte)
	// failed answers a withdrawal, or an abandoned collective.
	failed(id uint32, a absence)
	// lost ends every call, now and later.
	lost(e LostError)
}

// absence is what the hub knows about a collective that was given up.
type absence struct {
	missing []int
	gaveUp  []int
	waiting []WaitingRank
}

// contribution is one rank's part of a collective, known by the id that the
// rank gave its call.
type contribution struct {
	id   uint32
	blob []byte
}

// gather is what came under one key and is not answered yet.
type gather struct {
	queue   [][]contribution // per rank, oldest first
	present int              // ranks with a contribution
	pending int              // contributions
	gaveUp  []bool           // ranks that withdrew while others waited on
}

// seat is one rank as the hub sees it.
type seat struct {
	sink  sink
	calls map[uint32]string // key of each call in flight
	order []uint32          // the same calls, oldest first
	bytes int               // their blobs
}

// hub matches the contributions of all ranks by key and order. It holds no
// goroutine, clock or connection: time enters by withdraw, connections by sinks.
type hub struct {
	size int

	mu        sync.Mutex
	seats     []seat             // guarded by mu
	gathers   map[string]*gather // guarded by mu
	assembled bool               // guarded by mu; from here on a missing rank is a lost one
	gone      *LostError         // guarded by mu; the first loss
}

func newHub(size int, assembled bool) *hub {
	return &hub{size: size, seats: make([]seat, size), gathers: make(map[string]*gather), assembled: assembled}
}

// occupancy is the answer to a rank that wants a seat.
type occupancy uint8

const (
	seatFree occupancy = iota
	seatTaken
	seatLate // the group has lost a rank and takes nobody any more
)

// take gives rank's seat to s. replace says whether an occupant is an earlier
// try of the same process, to be put out.
func (h *hub) take(rank int, s sink, replace func(occupant sink) bool) occupancy {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone != nil {
		return seatLate
	}
	if old := h.seats[rank].sink; old != nil {
		if h.assembled || !replace(old) {
			return seatTaken
		}
		h.vacate(rank)
	}
	h.seats[rank] = seat{sink: s, calls: make(map[uint32]string)}
	return seatFree
}

// leave ends s's hold of rank's seat. Before the group is assembled the seat is
// free again; afterwards the rank is lost to everybody.
func (h *hub) leave(rank int, s sink, reason LossReason) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seats[rank].sink != s {
		return
	}
	h.vacate(rank)
	if !h.assembled || h.gone != nil {
		return
	}
	h.gone = &LostError{Rank: rank, Reason: reason}
	clear(h.gathers)
	for r := range h.seats {
		st := &h.seats[r]
		if st.sink != nil {
			clear(st.calls)
			st.order, st.bytes = nil, 0
			st.sink.lost(*h.gone)
		}
	}
}

// vacate empties a seat and removes what it had contributed.
func (h *hub) vacate(rank int) {
	st := &h.seats[rank]
	for _, id := range st.order {
		h.remove(rank, id, st.calls[id], false)
	}
	h.seats[rank] = seat{}
}

// contribute adds rank's part. An error means that the rank broke the protocol.
// The hub keeps blob until the collective is answered.
func (h *hub) contribute(rank int, s sink, id uint32, key string, blob []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	st := &h.seats[rank]
	if st.sink != s || h.gone != nil {
		return nil // it has been told, or will be in a moment
	}
	if _, ok := st.calls[id]; ok {
		return fmt.Errorf("call %d is in flight already", id)
	}
	if len(st.calls) >= MaxInFlight || st.bytes+len(blob) > MaxInFlightBytes {
		return fmt.Errorf("%d calls and %d bytes in flight, allowed are %d and %d",
			len(st.calls)+1, st.bytes+len(blob), MaxInFlight, MaxInFlightBytes)
	}
	st.calls[id] = key
	st.order = append(st.order, id)
	st.bytes += len(blob)

	g := h.gathers[key]
	if g == nil {
		g = &gather{queue: make([][]contribution, h.size), gaveUp: make([]bool, h.size)}
		h.gathers[key] = g
	}
	if len(g.queue[rank]) == 0 {
		g.present++
	}
	g.queue[rank] = append(g.queue[rank], contribution{id, blob})
	g.pending++
	g.gaveUp[rank] = false
	if g.present == h.size {
		h.complete(key, g)
	}
	return nil
}

// complete answers the oldest contribution of every rank.
func (h *hub) complete(key string, g *gather) {
	if key == joinKey {
		h.assembled = true
	}
	blobs := make([][]byte, h.size)
	ids := make([]uint32, h.size)
	for r := range g.queue {
		blobs[r], ids[r] = g.queue[r][0].blob, g.queue[r][0].id
	}
	clear(g.gaveUp)
	for r := range ids {
		h.remove(r, ids[r], key, false)
	}
	for r, id := range ids {
		h.seats[r].sink.result(id, blobs)
	}
}

// remove takes a contribution out; the gather goes with its last one.
func (h *hub) remove(rank int, id uint32, key string, gaveUp bool) {
	st := &h.seats[rank]
	delete(st.calls, id)
	for i, o := range st.order {
		if o == id {
			st.order = append(st.order[:i:i], st.order[i+1:]...)
			break
		}
	}
	g := h.gathers[key]
	if g == nil {
		return
	}
	q := g.queue[rank]
	for i := range q {
		if q[i].id != id {
			continue
		}
		st.bytes -= len(q[i].blob)
		g.queue[rank] = append(q[:i:i], q[i+1:]...)
		g.pending--
		break
	}
	if len(g.queue[rank]) == 0 {
		g.queue[rank] = nil
		g.present--
		g.gaveUp[rank] = gaveUp
	}
	if g.pending == 0 {
		delete(h.gathers, key)
	}
}

// withdraw takes call id back and answers it with who is missing. It does
// nothing if the call has been answered.
func (h *hub) withdraw(rank int, s sink, id uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seats[rank].sink != s {
		return
	}
	key, ok := h.seats[rank].calls[id]
	if !ok {
		return
	}
	a := h.absent(rank, key)
	h.remove(rank, id, key, true)
	s.failed(id, a)
}

// abandon fails every contribution under key with what this rank saw missing.
func (h *hub) abandon(key string, a absence) {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.gathers[key]
	if g == nil {
		return
	}
	for r, q := range g.queue {
		for _, c := range q {
			h.remove(r, c.id, key, true)
			h.seats[r].sink.failed(c.id, a)
		}
	}
}

// absent tells who is not there under key, and what else they wait for.
func (h *hub) absent(self int, key string) absence {
	var a absence
	g := h.gathers[key]
	for r := range h.size {
		if r == self || len(g.queue[r]) > 0 {
			continue
		}
		if g.gaveUp[r] {
			a.gaveUp = append(a.gaveUp, r)
		} else {
			a.missing = append(a.missing, r)
		}
		if order := h.seats[r].order; len(order) > 0 && len(a.waiting) < maxWaitingRanks {
			w := WaitingRank{Rank: r}
			for _, id := range order[:min(len(order), maxWaitingKeys)] {
				w.Keys = append(w.Keys, h.seats[r].calls[id])
			}
			a.waiting = append(a.waiting, w)
		}
	}
	if len(a.missing) == 0 {
		a.missing = append([]int(nil), a.gaveUp...)
	}
	return a
}
