// Package verbs is the transport over libibverbs: reliable connected queue pairs
// of ConnectX and of anything else that speaks RoCE or InfiniBand, Soft-RoCE
// included. It needs the build tag verbs, cgo and the headers of rdma-core;
// without them New says so.
//
//	domain = one port of one device
//	├─ protection domain, one completion queue
//	├─ UD queue pair: handshakes, retransmitted, with generations and deadlines
//	├─ SRQ of messages: the receives that the caller posted
//	├─ SRQ of immediates: empty receives, topped up in batches
//	└─ link to each peer (link.go)
//	     ├─ RC queue pair for sends
//	     └─ RC queue pair for writes, reads and atomics
//
// Two queue pairs for a peer, because a message and an immediate both consume a
// receive in the order of arrival: on one queue pair an immediate would eat the
// buffer of a message.
//
// Post and PostScatter check a request, copy it, and put it on its link. The
// next Poll hands all that has come together to the device, one chain for each
// queue pair, takes completions, and tops up receives: one crossing into C for
// a turn of the owner. Requests of a link that is not connected yet wait there.
//
// # When something breaks
//
// A queue pair that has failed is replaced: its requests end with the completion
// status that the device gave (Completion.Vendor, see VendorText), those behind
// them as flushed, and what was not handed to the device waits for the new
// connection. When the path itself is gone (retries exceeded, the peer closed,
// nobody answers) all requests of the link end as StatusPeerLost, and posts are
// refused with an error that names the port and the peer, until the peer answers
// a handshake again, which is tried in the background.
//
// A port that goes down makes posts fail with an error that names it; they go
// through again when it is back. A device that fails for good, the queue pair of
// handshakes in error, or a port whose address changed, makes Poll fail with an
// error that names device and port.
//
// # Limits
//
// A message (OpSend) and a receive lie within one piece of a region, where the
// device's maximum has cut the region into pieces. Reads and atomics under way
// are held to what both devices grant. A completion for an immediate reports the
// bytes of the write's last piece.
package verbs
