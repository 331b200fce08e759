package engine

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"moerail/transport"
)

// Poller has a share in every turn of the worker, on the worker's thread. Poll
// looks for work, does a bounded piece of it, and tells whether there was any.
// It must not block. It may Scatter.
type Poller interface{ Poll(w *Worker) (busy bool) }

// Sleeper is a Poller that knows when it need not be called: while MaySleep
// says true, whatever it waits for comes as a completion, an immediate, a
// command, or with a call of Engine.Wake. A worker whose pollers may all sleep
// parks without a time limit.
type Sleeper interface {
	Poller
	MaySleep() bool
}

// Worker is the engine's one thread. Its methods may be called on it alone: in
// Poll, HandleImm and the function of Call.
type Worker struct {
	e         *Engine
	nics      []*nic
	pollers   []Poller
	slots     []*Tracker
	freeSlots []uint32
	groups    []*PeerGroup // by id-1, nil where closed
	spareJobs *job         // for scatters of pollers
	imms      immTable
	regions   map[*Region]struct{}
	peers     map[string]*Peer // by encoded address
	origin    map[transport.Peer]*Peer
	sends     sendBuffers
	recvs     *recvPool
	timer     *time.Timer
	doze      doze
	posted    bool   // since the turn began
	immsSeen  uint64 // since the last poll of a NIC
}

func newWorker(e *Engine) *Worker {
	return &Worker{
		e: e,
		imms: immTable{
			counters: map[transport.Imm]*ImmCounter{}, early: map[transport.Imm]uint64{}, maxEarly: e.cfg.MaxEarlyImms,
		},
		regions: map[*Region]struct{}{}, peers: map[string]*Peer{}, origin: map[transport.Peer]*Peer{},
	}
}

// Engine is the engine this worker belongs to.
func (w *Worker) Engine() *Engine { return w.e }

// NumNICs is the number of NICs that a GroupOp may name.
func (w *Worker) NumNICs() int { return len(w.nics) }

// commandBatch bounds how long commands keep a turn from the NICs.
const commandBatch = 64

// turn looks at everything once: calls, commands, posts, completions, pollers.
func (w *Worker) turn() (busy bool) {
	e := w.e
	w.posted = false
	if e.inboxed.Load() {
		w.runCalls()
		busy = true
	}
	for i := 0; i < commandBatch; i++ {
		n := e.cmds.pop()
		if n == nil {
			break
		}
		n.owner.onWorker(w)
		busy = true
	}
	if e.recall.Load() {
		e.recall.Store(false)
		w.dropCancelled()
		busy = true
	}
	for _, n := range w.nics {
		if n.queued() {
			n.flush(w)
		}
		if n.failed == nil && n.poll(w) {
			busy = true
		}
	}
	for i := 0; i < len(w.pollers); i++ { // one may detach another
		if w.pollers[i].Poll(w) {
			busy = true
		}
	}
	return busy || w.posted
}

func (w *Worker) runCalls() {
	e := w.e
	e.inboxed.Store(false)
	e.inboxMu.Lock()
	calls := e.inbox
	e.inbox = nil
	e.inboxMu.Unlock()
	for _, c := range calls {
		c.fn(w)
		c.done <- true
	}
}

// Attach adds a poller, a pointer as a rule: it must be comparable. It is called
// every turn until Detach.
func (e *Engine) Attach(p Poller) error {
	if p == nil || !reflect.TypeOf(p).Comparable() {
		return fmt.Errorf("%w: poller of type %T can not be told from others", ErrArgument, p)
	}
	var dup bool
	err := e.Call(func(w *Worker) {
		if dup = slices.Contains(w.pollers, p); !dup {
			w.pollers = append(w.pollers, p)
		}
	})
	if err == nil && dup {
		err = fmt.Errorf("%w: poller is attached already", ErrArgument)
	}
	return err
}

// Detach removes a poller. When it returns the poller is not running and never
// will again. An unknown poller is no error; neither is a closed engine.
func (e *Engine) Detach(p Poller) error {
	if p == nil || !reflect.TypeOf(p).Comparable() {
		return nil // never attached
	}
	if err := e.Call(func(w *Worker) { w.Detach(p) }); err != nil {
		<-e.ended
	}
	return nil
}

// Detach removes a poller, possibly the one that calls; it is not called again
// once it has returned.
func (w *Worker) Detach(p Poller) {
	if i := slices.Index(w.pollers, p); i >= 0 {
		w.pollers = slices.Delete(w.pollers, i, i+1)
	}
}

// shutdown ends everything. The domains go first: once they are closed no NIC
// touches the memory of transfers that are then reported as ended.
func (w *Worker) shutdown() {
	e := w.e
	var errs []error
	for _, n := range w.nics {
		if err := n.dom.Close(); err != nil {
			errs = append(errs, fmt.Errorf("engine: close NIC %s: %w", n.name, err))
		}
		n.failed = ErrClosed
		n.urgent, n.bulk = jobList{}, jobList{}
	}
	w.pollers = nil
	e.inboxMu.Lock()
	e.shut = true
	calls := e.inbox
	e.inbox = nil
	e.inboxMu.Unlock()
	for _, c := range calls {
		c.done <- false
	}
	for _, t := range w.slots {
		if t != nil && t.outstanding > 0 {
			w.abandon(t)
		}
	}
	w.imms.close()
	e.dead.Store(true)
	e.drainDead()
	e.closeErr = errors.Join(errs...)
	w.recvs.close()
	// Behind every callback that was due: the bytes of a message may be read
	// until its callback has returned.
	e.done.deliverFunc(func() {
		w.recvs.release()
		close(e.drained)
	})
	w.sends.release(e)
	w.doze.close()
	close(e.ended)
}

// abandon ends what a closing engine has not seen completed.
func (w *Worker) abandon(t *Tracker) {
	for i := range t.out {
		if n := int(t.out[i]); n > 0 {
			w.end(t, i, n, &TransferError{
				Entry: NoEntry, Peer: transport.NoPeer, NIC: w.nics[i].name, Status: transport.StatusFlushed, Err: ErrClosed,
			})
			if t.outstanding == 0 {
				return
			}
		}
	}
}
