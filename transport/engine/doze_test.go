package engine

import (
	"encoding/binary"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"moerail/transport"
)

// fdDomain is a domain that tells of arrivals by a descriptor alone.
type fdDomain struct {
	transport.Domain
	fd      int
	pending atomic.Bool // Arm refuses
	polls   atomic.Int64
	arms    atomic.Int64
}

func newFDDomain(t *testing.T, net *fakeNet) *fdDomain {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return &fdDomain{Domain: net.domain("fd", 0), fd: fd}
}

func (d *fdDomain) WaitFD() int { return d.fd }

func (d *fdDomain) Arm() bool {
	d.arms.Add(1)
	return !d.pending.Load()
}

func (d *fdDomain) Poll(out []transport.Completion) (int, error) {
	var b [8]byte
	_, _ = unix.Read(d.fd, b[:]) // what was announced is seen now
	d.polls.Add(1)
	return d.Domain.Poll(out)
}

func (d *fdDomain) arrive(t *testing.T) {
	t.Helper()
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], 1)
	if _, err := unix.Write(d.fd, b[:]); err != nil {
		t.Fatal(err)
	}
}

// asleep waits until the worker sleeps: it has armed, and polls no more.
func (d *fdDomain) asleep(t *testing.T, e *Engine) (polls int64) {
	t.Helper()
	eventually(t, "sleep", func() bool {
		polls = d.polls.Load()
		time.Sleep(2 * time.Millisecond)
		return e.parked.Load() && d.polls.Load() == polls
	})
	return polls
}

// TestAWorkerSleepsOnItsNICs: with no time limit to help, what ends the sleep is
// the descriptor, Wake, a command, or a domain that refuses to be slept on.
func TestAWorkerSleepsOnItsNICs(t *testing.T) {
	before := maxDoze
	maxDoze = time.Hour
	t.Cleanup(func() { maxDoze = before }) // runs after the engine's Close below

	net := newFakeNet(1)
	d := newFDDomain(t, net)
	// Once before counting: the first use of files opens a descriptor of Go's own.
	_, _ = os.ReadDir("/proc/self/fd")
	time.Sleep(time.Microsecond)
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("descriptors can not be counted: ", err)
	}
	e := must[*Engine](t)(New(Config{Provider: net, Domains: []transport.Domain{d}, CPU: -1}))

	at := d.asleep(t, e)
	d.arrive(t)
	eventually(t, "a poll after an arrival", func() bool { return d.polls.Load() > at })

	at = d.asleep(t, e)
	e.Wake()
	eventually(t, "a poll after Wake", func() bool { return d.polls.Load() > at })

	d.asleep(t, e)
	if err := e.Call(func(*Worker) {}); err != nil {
		t.Fatal(err)
	}

	d.asleep(t, e)
	d.pending.Store(true)
	e.Wake()
	at = d.arms.Load()
	eventually(t, "a domain that is asked again", func() bool { return d.arms.Load() > at+2 })
	d.pending.Store(false)

	d.asleep(t, e)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e.Wake() // of nobody, into no descriptor of somebody else's
	if now, err := os.ReadDir("/proc/self/fd"); err != nil || len(now) > len(fds) {
		t.Errorf("%d descriptors, %d before the engine, %v", len(now), len(fds), err)
	}
}

// TestSleepingAllocatesNothing: going to sleep is part of every quiet moment.
func TestSleepingAllocatesNothing(t *testing.T) {
	net := newFakeNet(1)
	d := newFDDomain(t, net)
	e := must[*Engine](t)(New(Config{Provider: net, Domains: []transport.Domain{d}, CPU: -1}))
	defer e.Close()
	var n float64
	if err := e.Call(func(w *Worker) {
		n = testing.AllocsPerRun(100, func() {
			d.arrive(t)
			w.doze.sleep(w)
		})
	}); err != nil {
		t.Fatal(err)
	}
	if n != 0 && !raceEnabled {
		t.Errorf("%v allocations for each sleep", n)
	}
}

// TestAWorkerThatYieldsToOthersSleepsSoon: with OSYield the few yields before the
// sleep are few after each piece of work, too.
func TestAWorkerThatYieldsToOthersSleepsSoon(t *testing.T) {
	before := maxDoze
	maxDoze = time.Hour
	t.Cleanup(func() { maxDoze = before })
	net := newFakeNet(1)
	d := newFDDomain(t, net)
	e := must[*Engine](t)(New(Config{Provider: net, Domains: []transport.Domain{d}, CPU: -1, Poll: PollPolicy{OSYield: true}}))
	t.Cleanup(func() { e.Close() }) // before the one above
	for range 3 {
		at := d.asleep(t, e)
		if err := e.Call(func(*Worker) {}); err != nil {
			t.Fatal(err)
		}
		// The call's turn, up to 20 without and crowdedYield with a yield, and two of
		// each park.
		if n := d.asleep(t, e) - at; n > 20+crowdedYield+5 {
			t.Errorf("%d turns until the worker slept again", n)
		}
	}
}
