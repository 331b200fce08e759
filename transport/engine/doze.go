package engine

import (
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// doze lets a worker whose domains have descriptors (transport.Waiter) sleep in
// the kernel, where it costs the other processes of the host nothing and wakes
// with the arrival itself.
type doze struct {
	event int        // eventfd that Wake writes; -1 when closed
	mu    sync.Mutex // guards event between Wake and close
	fds   []unix.PollFd
	nics  []*nic // of fds[1:]
	limit unix.Timespec
	out   [8]byte
}

// maxDoze bounds a sleep: time limits of a domain, and what a descriptor fails to
// tell, are seen by looking alone.
var maxDoze = 5 * time.Millisecond // a variable for tests

// open makes ready for sleeping if any of the NICs has a descriptor.
func (z *doze) open(nics []*nic) error {
	z.event = -1
	for _, n := range nics {
		if n.waiter != nil {
			z.nics = append(z.nics, n)
		}
	}
	if len(z.nics) == 0 {
		return nil
	}
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("engine: eventfd to wake the worker: %w", err)
	}
	z.event = fd
	z.fds = append(z.fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	for _, n := range z.nics {
		z.fds = append(z.fds, unix.PollFd{Fd: int32(n.waiter.WaitFD()), Events: unix.POLLIN})
	}
	binary.NativeEndian.PutUint64(z.out[:], 1)
	return nil
}

func (z *doze) enabled() bool { return len(z.fds) > 0 }

// sleep returns when somebody woke the worker, a descriptor is readable, or it is
// time to look. It tells whether there is reason to look closely.
func (z *doze) sleep(w *Worker) bool {
	limit := maxDoze
	if w.mustLook() {
		limit = min(limit, w.e.cfg.Poll.MaxPark)
	}
	for i, n := range z.nics {
		if n.failed != nil {
			z.fds[i+1].Fd = -1 // poll(2) ignores it
			continue
		}
		if !n.waiter.Arm() {
			return true
		}
	}
	z.limit = unix.NsecToTimespec(int64(limit))
	n, err := unix.Ppoll(z.fds, &z.limit, nil)
	if z.fds[0].Revents != 0 {
		var b [8]byte
		_, _ = unix.Read(z.event, b[:])
	}
	return n > 0 || err != nil
}

// rouse is Wake's: it may come from any goroutine.
func (z *doze) rouse() {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.event >= 0 {
		_, _ = unix.Write(z.event, z.out[:])
	}
}

// close comes before Close returns. A Wake that was under way may come after it.
func (z *doze) close() {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.event >= 0 {
		_ = unix.Close(z.event)
		z.event = -1
	}
}
