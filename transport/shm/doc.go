// Package shm is the transport between processes of one host, in pure Go: a
// write is one copy into the peer's memory, made by the writer itself. Several
// domains of one process reach each other through the very same code.
//
//	domain A (sender)                            domain B (receiver)
//	----------------------------------------------------------------------
//	remote (mapped) ==== payload, copied by A ===> region, a memfd of B
//	out lane        ==== immediates, messages ===> in lane, one per sender
//	bell word       ==== "lane i has news" ======> Poll looks here first
//	valid word      <=== 0 once a region closes == region table, B writes only
//	guard word      ==== "A is inside Post" =====> B.Region.Close waits for it
//	unix socket     <--- descriptors, and EOF when either side dies --->
//
// Each (sender, receiver) pair has a lane of its own, so that a sender which
// dies in the middle of anything, or which lies, harms its own lane only.
// Nothing a peer can write is trusted: an index or length out of range ends the
// lane and marks the peer lost. All shared objects are sealed in their size, so
// that no peer can make a mapped page vanish.
//
// There is no lock in the data path. A post costs one atomic add when it is
// entered and left, one store into the lane, and, if the receiver has looked
// since, one on its bell. An idle Poll reads one word per 64 senders.
//
// Descriptors travel over a unix socket (SCM_RIGHTS), so neither ptrace rights
// nor a common pid namespace is needed; what is needed is a common network
// namespace, because that is where abstract socket names live. Memory is memfd,
// so a killed process leaves nothing behind in any file system.
//
// Limits: 512 senders and 4096 regions open to peers per domain, 1024 domains
// per process. An ordered pair of domains costs six mappings and two descriptors
// when both are of one process (half of each in two), so the kernel's default of
// 65530 mappings allows about 100 domains of one process to know each other all.
//
// What the key of a region protects: a peer gets the descriptor only if it
// shows the region's key to its owner. From then on the peer can touch the whole
// shared object behind the region, also outside the region and after its close,
// if it goes round this package: processes that share memory trust each other
// with it. Bounds, access rights and revocation are enforced at the sender.
package shm
