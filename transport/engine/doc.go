// Package engine is the TransferEngine: it moves bytes between registered
// regions over one to four NICs at once and tells, by counting immediates, when
// they have arrived.
//
//	applications            worker (one goroutine, owns the domains)        callbacks
//	Write, Send, ... --commands-->  calls, commands, posts, polls, pollers --done--> one goroutine
//	Register, Call   --inbox----->        |  transport.Domain x 1..4  |
//
// Threads. The worker alone touches the domains, so nothing there is locked. A
// Poller attached to the worker plans and posts on that thread with no hop; all
// others hand over pooled transfer objects through a lock-free queue. Functions
// of applications run on a callback goroutine of the engine, never on the
// worker, and may call every method of the engine. Methods of Worker, Tracker
// and ImmHandler belong to the worker thread; methods of Engine that wait for
// the worker (Register, AddPeerGroup, Call, Close, ...) must not be called there.
//
// Order. There is none: not between transfers, not within one. A completion says
// that local memory may be reused; an immediate says that the payload of its own
// write is visible. Everything else is counting.
//
// How many immediates a receiver sees is in the contract, since receivers count
// them:
//
//	Write, SplitBytes scatter   Engine.WriteImms(length, nics): one per non-empty shard
//	                            (and per MaxMessage piece of it), 1 for length 0
//	WritePages                  one per page
//	Scatter that deals peers    Engine.WriteImms(length, 1) per target
//	Worker.Scatter, Barrier     one per op
//
// NIC i of this engine talks to NIC i of the peer and no other, so both ends
// must have the same number of NICs.
package engine
