package moe

import (
	"sync"

	"moerail/internal/mem"
)

// inProcess finds the communicator that an inbox in this process belongs to, by
// the inbox's address. A rank that stores directly into such an inbox can wake
// the rank it stores for; one in another process has to look by itself.
var inProcess sync.Map // uint64 -> *Communicator

// neighbour is the communicator behind a mapped inbox, nil if it is another
// process's.
func neighbour(inbox uint64) *Communicator {
	if c, ok := inProcess.Load(inbox); ok {
		return c.(*Communicator)
	}
	return nil
}

func (c *Communicator) beFound() { inProcess.Store(mem.Addr(c.inbox.Host), c) }

func (c *Communicator) beForgotten() {
	if c.inbox.Host != nil {
		inProcess.CompareAndDelete(mem.Addr(c.inbox.Host), c)
	}
}

// bumped is called when a stage of this rank has written words that others poll:
// the proxy, and ranks of this process whose memory it stores into.
func (c *Communicator) bumped() {
	c.engine.Wake()
	for _, n := range c.neighbours {
		for _, s := range n.slots {
			s.stream.Notify()
		}
	}
}
