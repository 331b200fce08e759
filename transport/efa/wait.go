//go:build libfabric && cgo

package efa

import "moerail/transport"

var _ transport.Waiter = (*domain)(nil)

// WaitFD implements transport.Waiter.
func (d *domain) WaitFD() int { return d.waitFD }

// Arm implements transport.Waiter.
func (d *domain) Arm() bool {
	if !d.enter() {
		return false
	}
	ok := len(d.stash.items) == 0 && d.f.Arm(d.tail, d.recvTail)
	d.leave()
	return ok
}
