//go:build libfabric && cgo

package efa

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"moerail/transport"
)

// TestASleeperIsWokenByWhatArrives: a domain that may be slept on has a readable
// descriptor as soon as a peer's write is there to be polled, the very first one
// with its connection included.
func TestASleeperIsWokenByWhatArrives(t *testing.T) {
	for _, sp := range softwareProviders {
		t.Run(sp.name, func(t *testing.T) {
			p := open(t, Config{Provider: sp.name})
			a, b := newSide(t, p, transport.DomainConfig{}, 4096), newSide(t, p, transport.DomainConfig{}, 4096)
			if b.d.WaitFD() < 0 {
				if !slices.Contains(layers(p.Name()), "shm") && sp.name != "shm" {
					t.Fatalf("%s has no descriptor to sleep on", sp.name)
				}
				if b.d.Arm() {
					t.Error("a domain without a descriptor lets its owner sleep")
				}
				return
			}
			ab, abR := a.know(b.d.Addr(), b.reg.RemoteKey(), b.reg.Size())
			fds := []unix.PollFd{{Fd: int32(b.d.WaitFD()), Events: unix.POLLIN}}
			slept := 0
			for i := range 200 {
				for !b.d.Arm() { // nothing is on its way: it soon may
					b.poll()
				}
				a.post(transport.WorkRequest{Op: transport.OpWriteImm, Peer: ab, Local: a.reg.LKey(), Remote: abR, Len: 64, Imm: transport.Imm(i)})
				for came := false; !came; {
					a.poll() // moves the write
					if n, err := unix.Poll(fds, 20); err != nil && err != unix.EINTR {
						t.Fatal(err)
					} else if n == 0 {
						// A connection takes turns of both ends; once it is there
						// the write itself must show.
						if i > 0 && slept == 100 {
							t.Fatalf("write %d does not show at the descriptor", i)
						}
						if slept++; slept > 200 {
							t.Fatal("the first write never shows at the descriptor")
						}
						continue
					}
					slept = 0
					for _, c := range b.poll() {
						came = came || isImm(transport.Imm(i))(c)
					}
				}
			}
		})
	}
}
