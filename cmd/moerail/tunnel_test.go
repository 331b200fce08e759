package main

import (
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// joinByTunnel joins the hosts by a TUN device in each, between which this process
// carries the packets: late by delay, and with a share of loss left out. It does
// what tc netem does, where the kernel has no netem.
func joinByTunnel(t *testing.T, hosts [2]*host, delay time.Duration, loss float64) {
	t.Helper()
	var ends [2]*os.File
	for i, h := range hosts {
		f, err := h.openTunnel()
		if err != nil {
			t.Skipf("TUN devices: %v", err)
		}
		ends[i] = f
		h.up(t)
	}
	var lost, carried atomic.Int64
	var all sync.WaitGroup
	for i := range ends {
		rng := rand.New(rand.NewPCG(uint64(i), 1))
		all.Go(func() {
			carryLate(ends[i], ends[1-i], delay, func() bool { return rng.Float64() < loss }, &carried, &lost)
		})
	}
	t.Cleanup(func() {
		for _, f := range ends {
			f.Close()
		}
		all.Wait()
		t.Logf("the tunnel carried %d packets and lost %d", carried.Load(), lost.Load())
		if loss > 0 && lost.Load() == 0 && carried.Load() > 1000 {
			t.Error("nothing was lost")
		}
	})
}

// openTunnel makes the link's device on the host.
func (h *host) openTunnel() (*os.File, error) {
	type result struct {
		f   *os.File
		err error
	}
	made := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked; see start
		f, err := func() (*os.File, error) {
			if err := h.enter(); err != nil {
				return nil, err
			}
			fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
			if err != nil {
				return nil, os.NewSyscallError("open /dev/net/tun", err)
			}
			ifr, err := unix.NewIfreq(link)
			if err != nil {
				return nil, err
			}
			ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
			if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
				unix.Close(fd)
				return nil, os.NewSyscallError("TUNSETIFF", err)
			}
			return os.NewFile(uintptr(fd), link), nil
		}()
		made <- result{f, err}
	}()
	r := <-made
	return r.f, r.err
}

// queued is how many packets may be on their way in one direction; more are lost,
// as in any router.
const queued = 4096

// carryLate moves packets from one end to the other until either is closed.
func carryLate(from, to *os.File, delay time.Duration, drop func() bool, carried, lost *atomic.Int64) {
	type packet struct {
		due  time.Time
		data []byte
	}
	line := make(chan packet, queued)
	var writer sync.WaitGroup
	writer.Go(func() {
		for p := range line {
			if wait := time.Until(p.due); wait > 0 {
				time.Sleep(wait)
			}
			if _, err := to.Write(p.data); err == nil {
				carried.Add(1)
			}
		}
	})
	defer writer.Wait()
	defer close(line)
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if drop() {
			lost.Add(1)
			continue
		}
		select {
		case line <- packet{time.Now().Add(delay), append([]byte(nil), buf[:n]...)}:
		default:
			lost.Add(1)
		}
	}
}
