package engine

import (
	"runtime"
	"sync/atomic"
)

// callbacks runs applications' functions one after another, in the order they
// became due. There is one per engine rather than per process: a slow callback
// of one engine then holds up no other, and nothing global has to end. Its
// goroutine lives only while there is something to run, so an idle engine has
// none and a closed one leaks none.
//
// The worker never waits for it, so a callback may call the engine freely.
type callbacks struct {
	q       queue
	running atomic.Bool
	run     func() // bound once, so that starting the goroutine allocates nothing
}

// A goroutine start costs about as much as this many yields.
const callbackLinger = 64

func (c *callbacks) init() {
	c.q.init()
	c.run = c.loop
}

func (c *callbacks) deliver(n *node) {
	c.q.push(n)
	if !c.running.Load() && c.running.CompareAndSwap(false, true) {
		go c.run()
	}
}

func (c *callbacks) loop() {
	for quiet := 0; ; {
		if n := c.q.pop(); n != nil {
			n.owner.onCallback()
			quiet = 0
			continue
		}
		if quiet++; quiet < callbackLinger || !c.q.idle() {
			runtime.Gosched()
			continue
		}
		if c.leave() {
			return
		}
		quiet = 0
	}
}

// leave ends the goroutine's term, unless something came at the last moment: a
// node pushed before the store saw a runner and started none.
func (c *callbacks) leave() bool {
	c.running.Store(false)
	return c.q.idle() || !c.running.CompareAndSwap(false, true)
}

// later is a single call on the callback goroutine.
type later struct {
	node node
	fn   func()
}

func (l *later) onWorker(*Worker) {}
func (l *later) onCallback()      { l.fn() }

func (c *callbacks) deliverFunc(fn func()) {
	l := &later{fn: fn}
	l.node.owner = l
	c.deliver(&l.node)
}
