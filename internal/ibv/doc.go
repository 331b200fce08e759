// Package ibv is the fence around libibverbs: the only Go code that knows its
// C structures. It needs the build tag verbs, cgo and the headers of
// rdma-core; without them the package is empty.
//
//	transport/verbs ──> Device, PD, CQ, QP, SRQ, MR, AH   set-up, one crossing each
//	                └─> Queue.Add, AddRecv, Refill, Step   the hot path, one crossing in all
//	                          │
//	                    struct moerail_ibv: a table of function pointers
//	                     ├─ Open: libibverbs.so.1, by dlopen and dlvsym
//	                     └─ ibvfake: a device in memory, for tests
//
// The library is opened at run time, with the symbol versions of the headers, so
// that a binary with the tag starts on a machine that has none.
//
// Nothing here is safe for concurrent use, save Open. Objects are closed by
// their owner, in reverse order; closing twice is harmless.
package ibv
