// Package efa is the transport over libfabric: AWS EFA in production, and every
// other provider of libfabric that has a reliable datagram endpoint with remote
// memory access, such as TCP and shared memory.
//
// It is compiled with the build tag libfabric (and cgo); without it the same
// names exist and answer ErrNotBuilt. The library itself is opened at run time.
//
//	Post, PostScatter, PostRecv    fill slots in C memory; nothing crosses to C
//	Poll                           one crossing: post what was filled in, try again
//	                               what a peer could not take, read completions
//
// What a provider reports is obeyed, never assumed: addresses or offsets, local
// descriptors, who chooses keys, how wide the data beside a write is, posted
// receives for such data. A provider that wants what is not supported is refused
// by the name of the thing. What a provider claims and does not do is found by
// trying it against oneself when the provider is opened (probe.go).
//
// Libfabric's providers do not agree on what becomes of an operation whose peer
// is gone: an error, EAGAIN for ever, or silence. So each peer has a queue of its
// own for what could not be posted, and a deadline of its own: a peer that owes
// something and ends nothing for Config.ConnectTimeout is lost, and everything it
// owes ends as StatusPeerLost. Other peers notice nothing.
//
// A local completion says that the buffer may be reused. Over TCP it does not
// even say that the peer still lives: a write that the socket took has ended well.
//
// These providers move data only while they are polled. Where one has a descriptor
// that shows when to poll (tcp and net; shm and rxd have none) the domain is a
// transport.Waiter, and an idle owner sleeps on it; elsewhere the engine looks at
// least every PollPolicy.MaxPark.
package efa
