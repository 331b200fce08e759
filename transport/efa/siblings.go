//go:build libfabric && cgo

package efa

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"moerail/internal/fabric"
)

// Endpoints of libfabric's shm in one process use each other's mapping, and the
// one that closes unmaps it under the others (1.17, smr_map_to_region). So a
// domain that closes first makes the domains that know it stop using it: it
// announces the closing, and waits until each has left the call it is in. Who
// enters later sees the announcement before it touches the provider.
var siblings struct {
	sync.Mutex
	open     []*domain
	closing  map[uint64]bool // generations
	closings atomic.Uint64
}

func (d *domain) joinSiblings() {
	d.siblings = slices.Contains(layers(d.info.Provider), "shm")
	if !d.siblings {
		return
	}
	siblings.Lock()
	defer siblings.Unlock()
	siblings.open = append(siblings.open, d)
	d.closings = siblings.closings.Load()
}

// watchSiblings ends what is owed by peers of this process that have closed.
func (d *domain) watchSiblings() {
	if !d.siblings {
		return
	}
	if n := siblings.closings.Load(); n != d.closings {
		d.closings = n
		siblings.Lock()
		defer siblings.Unlock()
		d.peers.Each(func(_ int32, p **peer) {
			if siblings.closing[(*p).id.generation] {
				d.f.FlushPeer((*p).number, fabric.Lost)
			}
		})
	}
}

// leaveSiblings is called by a domain that closes, before its endpoint is gone.
func (d *domain) leaveSiblings() {
	if !d.siblings {
		return
	}
	siblings.Lock()
	siblings.open = slices.DeleteFunc(siblings.open, func(o *domain) bool { return o == d })
	others := slices.Clone(siblings.open)
	if siblings.closing == nil {
		siblings.closing = map[uint64]bool{}
	}
	if len(others) == 0 {
		clear(siblings.closing) // nobody is left who could know one of them
	}
	siblings.closing[d.id.generation] = true
	siblings.closings.Add(1)
	siblings.Unlock()
	for _, o := range others {
		for o.busy.Load() {
			runtime.Gosched()
		}
	}
}
