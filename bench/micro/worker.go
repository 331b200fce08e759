package micro

import (
	"context"
	"errors"
	"time"

	"moerail/transport/engine"
)

// workerLink posts from the engine's worker thread, as a round does: an immediate
// is answered in the turn that finds it.
//
// Its fields belong to the worker from arm to done.
type workerLink struct {
	*opened
	group *engine.PeerGroup
	claim *engine.ImmClaim
	track *engine.Tracker
	nics  int
	w     *engine.Worker
	done  chan error

	role   role
	lay    layout
	window int
	skip   int
	trips  []int64
	n      int // exchanges or writes
	sent   int
	got    int
	slot   int
	nic    int
	begin  time.Time
	at     time.Duration // when the write was posted whose answer is awaited
	took   time.Duration
	err    error
	ops    [postBatch]engine.GroupOp
}

type role uint8

const (
	roleNone   role = iota
	rolePing        // writes, then answers each answer but the last
	rolePong        // answers
	roleReady       // will be source
	roleSource      // streams, waits for one answer
	roleSink        // counts, answers once
	roleLeave       // waits for its last buffers
)

func newWorkerLink(ctx context.Context, cfg *Config, r Rank) (*workerLink, error) {
	o, err := openEngine(ctx, cfg, r)
	if err != nil {
		return nil, err
	}
	l := &workerLink{opened: o, nics: cfg.NICs, done: make(chan error, 1)}
	if l.group, err = o.engine.AddPeerGroup(o.local, []engine.Descriptor{o.theirs}); err == nil {
		l.claim, err = o.engine.ClaimImms(imm, 1, l)
	}
	if err == nil {
		err = o.engine.Call(func(w *engine.Worker) { l.w, l.track = w, w.NewTracker() })
	}
	if err == nil {
		err = o.engine.Attach(l)
	}
	if err != nil {
		return nil, errors.Join(err, o.close())
	}
	return l, nil
}

// arm gives the worker its part; what then arrives is counted.
func (l *workerLink) arm(r role, lay *layout, n int) error {
	return l.engine.Call(func(*engine.Worker) {
		l.role, l.lay, l.n = r, *lay, n
		l.sent, l.got, l.slot, l.err, l.took = 0, 0, 0, nil, 0
		l.track.Reset()
	})
}

// start lets the side that begins begin, and is nothing to the other one, whose
// part may be over by now.
func (l *workerLink) start() error {
	return l.engine.Call(func(*engine.Worker) {
		l.begin = time.Now()
		switch l.role {
		case rolePing:
			l.at = 0
			l.scatter(1, l.lay.size)
		case roleReady:
			l.role = roleSource
		}
	})
}

// wait returns when this side's part is over.
func (l *workerLink) wait(ctx context.Context) error {
	select {
	case err := <-l.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *workerLink) pingpong(ctx context.Context, lay *layout, skip int, trips []int64, ready syncFunc) error {
	r := rolePing
	if l.rank == 1 {
		r = rolePong
	}
	l.skip, l.trips = skip, trips
	if err := l.arm(r, lay, skip+len(trips)); err != nil {
		return err
	}
	if err := ready(); err != nil {
		return err
	}
	if err := l.start(); err != nil {
		return err
	}
	return l.wait(ctx)
}

func (l *workerLink) burst(ctx context.Context, lay *layout, n, window int, ready syncFunc) (time.Duration, error) {
	r := roleSink
	if l.rank == 0 {
		r = roleReady
	}
	l.window = window
	if err := l.arm(r, lay, n); err != nil {
		return 0, err
	}
	if err := ready(); err != nil {
		return 0, err
	}
	if err := l.start(); err != nil {
		return 0, err
	}
	err := l.wait(ctx)
	return l.took, err
}

// scatter posts n writes of size bytes from the next slots.
func (l *workerLink) scatter(n int, size uint64) {
	for i := range n {
		l.ops[i] = engine.GroupOp{NIC: int8(l.nic), Imm: imm, LocalOff: l.lay.local(l.slot), RemoteOff: l.lay.remote(l.slot), Len: size}
		if l.slot++; l.slot == l.lay.slots {
			l.slot = 0
		}
		if l.nic++; l.nic == l.nics {
			l.nic = 0
		}
	}
	l.sent += n
	if err := l.w.Scatter(l.group, l.track, l.ops[:n]); err != nil && l.err == nil {
		l.err = err
	}
}

// HandleImm is called on the worker for each immediate of the other rank.
func (l *workerLink) HandleImm(uint32) {
	l.got++
	switch l.role {
	case rolePing:
		now := time.Since(l.begin)
		if i := l.got - 1 - l.skip; i >= 0 {
			l.trips[i] = int64(now - l.at)
		}
		if l.got == l.n {
			l.role = roleLeave
			return
		}
		l.slot = 0
		l.at = time.Since(l.begin)
		l.scatter(1, l.lay.size)
	case rolePong:
		l.slot = 0
		l.scatter(1, l.lay.size)
		if l.got == l.n {
			l.role = roleLeave
		}
	case roleSource:
		l.took = time.Since(l.begin)
		l.role = roleLeave
	case roleSink:
		if l.got == l.n {
			l.scatter(1, 0)
			l.role = roleLeave
		}
	}
}

// Poll is the worker's turn.
func (l *workerLink) Poll(*engine.Worker) (busy bool) {
	if l.role == roleSource && l.sent < l.n {
		if free := min(l.window-l.track.Outstanding(), l.n-l.sent, postBatch); free > 0 {
			l.scatter(free, l.lay.size)
			busy = true
		}
	}
	if l.role == roleNone {
		return busy
	}
	if l.err == nil && l.track.Err() != nil {
		l.err = l.track.Err()
	}
	if l.err != nil || l.role == roleLeave && l.track.Outstanding() == 0 {
		l.role = roleNone
		l.done <- l.err
		return true
	}
	return busy
}
