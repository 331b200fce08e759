package loopback

import (
	"sync"
	"time"
)

// Clock is a fabric's time. AfterFunc calls fn once, from any goroutine, when d
// has passed; the fabric uses it to rouse parked owners.
type Clock interface {
	Now() time.Duration // since an arbitrary start
	AfterFunc(d time.Duration, fn func())
}

type systemClock struct{ start time.Time }

func newSystemClock() Clock { return systemClock{time.Now()} }

func (c systemClock) Now() time.Duration                   { return time.Since(c.start) }
func (c systemClock) AfterFunc(d time.Duration, fn func()) { time.AfterFunc(d, fn) }

// VirtualClock stands still until Advance; hours of fabric time then take no
// real time. Its zero value starts at 0. Safe for concurrent use.
type VirtualClock struct {
	mu     sync.Mutex
	now    time.Duration
	alarms []alarm
}

type alarm struct {
	at time.Duration
	fn func()
}

// Now is the sum of all Advances.
func (c *VirtualClock) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// AfterFunc calls fn in the Advance that passes d.
func (c *VirtualClock) AfterFunc(d time.Duration, fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alarms = append(c.alarms, alarm{c.now + d, fn})
}

// Advance moves time on by d and calls what has become due.
func (c *VirtualClock) Advance(d time.Duration) {
	c.mu.Lock()
	c.now += d
	var due []func()
	rest := c.alarms[:0]
	for _, a := range c.alarms {
		if a.at <= c.now {
			due = append(due, a.fn)
		} else {
			rest = append(rest, a)
		}
	}
	c.alarms = rest
	c.mu.Unlock()
	for _, fn := range due {
		fn()
	}
}
