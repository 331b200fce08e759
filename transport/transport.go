// Package transport is the contract between moerail and a fabric: what a
// provider (loopback, shared memory, libibverbs, libfabric) must do, and all
// that the layers above may rely on.
//
// The contract assumes very little. A fabric is *reliable but unordered*: an
// operation is delivered exactly once or reported as failed, operations overtake
// each other freely, the payload of one write may land in any order, and the
// only promise is that the immediate of a write becomes visible at the target
// after that write's own payload. A local completion says that the local buffer
// may be reused, not that the target has seen anything.
//
//	Provider -> Domain (one opened NIC) -> Region (registered memory)
//	                |                         \-> RemoteKey, sent to peers
//	                +-> Peer (an address added) -> Remote (a peer's key imported)
//	                +-> Template (pre-resolved peers and keys of a group)
//	                +-> Post, PostScatter, PostRecv / Poll
//
// All memory is addressed by (region, byte offset). A provider whose fabric
// wants virtual addresses adds the base itself, so that nothing above can name
// memory outside a region.
//
// Threads: every method of a Domain is called by its owner's thread alone,
// except Addr, Limits, Name, Stats and Close, which any goroutine may call.
package transport

import "errors"

// Opcode says what a work request does.
type Opcode uint8

const (
	OpWrite       Opcode = 1 + iota // one-sided write, nothing at the target's CPU
	OpWriteImm                      // one-sided write; Imm is delivered after the payload. Length 0 is legal
	OpRead                          // one-sided read into local memory
	OpCompareSwap                   // 8-byte compare-and-swap; the old value lands in local memory
	OpFetchAdd                      // 8-byte fetch-and-add; the old value lands in local memory
	OpSend                          // two-sided message into a receive buffer posted by the peer
	OpRecv                          // only in completions: a receive buffer was filled
	OpImm                           // only in completions: an immediate arrived
)

// Imm is the 32-bit immediate that travels with a write. Host byte order
// everywhere in Go; providers convert at the fence.
type Imm uint32

// WRID is the caller's own mark on a work request; it comes back in the
// completion. It need not be unique.
type WRID uint64

// Peer, LKey, Remote and Template are small handles valid in the one Domain
// that made them. A handle of another domain, or a released one, is refused
// with ErrBadHandle and never reaches the fabric.
type (
	Peer     int32 // from AddPeer
	LKey     int32 // of a Region registered in this domain
	Remote   int32 // from Import
	Template int32 // from NewTemplate
)

// NoPeer stands in a completion whose origin the fabric does not report.
const NoPeer Peer = -1

// Address is what a peer needs to reach a domain: opaque, at most
// MaxAddressBytes long, and carrying a generation, so that a restarted peer has
// another address than its former life.
type Address []byte

// RemoteKey is what a peer needs to access a region: opaque, made by the
// domain that registered the region, at most MaxKeyBytes long.
type RemoteKey []byte

const (
	MaxAddressBytes = 512
	MaxKeyBytes     = 64 << 10
)

// Access is the set of things that peers may do to a region.
type Access uint8

const (
	AccessLocal       Access = 0
	AccessRemoteWrite Access = 1 << iota >> 1
	AccessRemoteRead
	AccessRemoteAtomic
	AccessAll = AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic
)

// MemoryKind tells where memory lies.
type MemoryKind uint8

const (
	MemoryHost MemoryKind = iota
	MemoryDevice
)

// Memory is a range that can be registered. Its owner keeps it mapped until
// every region over it is closed.
type Memory struct {
	Kind MemoryKind
	Host []byte // host memory, off the Go heap (internal/mem or a Provider's Alloc)
	// FD is a descriptor of the shared object that backs Host and FDOffset where
	// Host starts in it; FD is -1 where there is none.
	FD       int
	FDOffset uint64
	Device   uint64 // device pointer when Kind is MemoryDevice
	Size     uint64 // bytes; equals len(Host) for host memory
}

// Region is registered memory of one domain.
type Region interface {
	LKey() LKey
	Size() uint64
	// RemoteKey is constant over the region's life; the caller may keep it.
	RemoteKey() RemoteKey
	// Close revokes the key. A write that arrives later fails at its sender with
	// StatusRemoteAccess. Closing twice is harmless. After an error the memory must
	// stay mapped until the domain is closed.
	Close() error
}

// WorkRequest is one operation. Which fields count depends on Op:
//
//	OpWrite, OpWriteImm, OpRead  Peer, Local+LocalOff, Len, Remote+RemoteOff (Imm)
//	OpCompareSwap, OpFetchAdd    as above, Len 8, RemoteOff a multiple of 8; Operand, Compare
//	OpSend                       Peer, Local+LocalOff, Len
//
// With Len 0, Local and Remote are still checked unless they are NoKey/NoRemote.
type WorkRequest struct {
	ID        WRID
	Op        Opcode
	Inline    bool // the payload is taken during Post; Len at most Limits.MaxInline
	Peer      Peer
	Local     LKey
	Remote    Remote
	Imm       Imm
	LocalOff  uint64
	RemoteOff uint64
	Len       uint64
	Operand   uint64 // addend, or the value to swap in
	Compare   uint64
}

const (
	NoKey    LKey   = -1
	NoRemote Remote = -1
)

// RecvRequest posts a buffer for one incoming message.
type RecvRequest struct {
	ID    WRID
	Local LKey
	Off   uint64
	Len   uint64
}

// TemplateEntry is one target of a template: everything that does not change
// from one scatter to the next.
type TemplateEntry struct {
	Peer   Peer
	Local  LKey
	Remote Remote
}

// ScatterOp is what does change: one write with immediate to entry Entry of the
// template. NoImm makes it a plain write.
type ScatterOp struct {
	Entry     int32
	NoImm     bool
	Imm       Imm
	LocalOff  uint64
	RemoteOff uint64
	Len       uint64
}

// Completion is the end of an operation, or something that arrived.
type Completion struct {
	ID     WRID   // of the request; unset for OpImm
	Op     Opcode // the request's, or OpRecv, or OpImm
	Status Status
	Peer   Peer // the request's target; the origin of OpRecv and OpImm, or NoPeer
	Imm    Imm  // OpImm
	Bytes  uint64
	Vendor uint32 // the device's own code behind Status, 0 if none
}

// Status classifies how an operation ended.
type Status uint8

const (
	StatusOK           Status = iota
	StatusRemoteAccess        // bad key, bad range, or not allowed at the target
	StatusPeerLost            // the peer, or the path to it, is gone
	StatusTruncated           // a message was longer than the receive buffer
	StatusFlushed             // cancelled by a shutdown or an earlier error
	StatusFault               // anything else; see Vendor
)

var statusText = [...]string{"ok", "remote access refused", "peer lost", "message truncated", "flushed", "fault"}

func (s Status) String() string {
	if int(s) < len(statusText) {
		return statusText[s]
	}
	return "unknown status"
}

var opText = [...]string{"none", "write", "write-imm", "read", "compare-swap", "fetch-add", "send", "recv", "imm"}

func (o Opcode) String() string {
	if int(o) < len(opText) {
		return opText[o]
	}
	return "unknown op"
}

// Limits are facts of an opened domain; zero in a Max field means none.
type Limits struct {
	MaxSend     int    // operations in flight before Post says ErrAgain
	MaxRecv     int    // posted receives
	MaxInline   int    // bytes
	MaxMessage  uint64 // bytes of one write or read
	MaxRecvSize uint64 // bytes of one send
	MaxRegion   uint64 // bytes under one device key; larger regions are split by the provider
	MaxRegions  int
	ImmBytes    int // 4 or more, or 0 where writes carry no immediate
	Read        bool
	Atomic      bool
	// SharesMemory: MapRemote works, at least for some peers.
	SharesMemory bool
	// LinkBytesPerSecond is the nominal rate, 0 if unknown.
	LinkBytesPerSecond uint64
}

// Stats count since the domain was opened. Bytes are payload bytes.
type Stats struct {
	Messages      uint64 // operations that crossed the fabric, writes, reads, atomics and sends
	Bytes         uint64 // their payload, in the direction it moved
	ImmsSent      uint64
	ImmsReceived  uint64
	Doorbells     uint64 // batches shown to the device
	Again         uint64 // times a post met a full queue
	StaleWrites   uint64 // arrivals for a revoked key or an old generation, dropped
	ReceiverStall uint64 // deliveries held back for want of a receive (RNR)
	Registrations uint64
}

// Domain is one opened NIC with its queues.
//
// Post, PostScatter and PostRecv take as many requests as fit, in order, and
// return how many; ErrAgain comes with every short count caused by a full queue
// and means: Poll, then post the rest. Any other error names the request at
// index n, which was refused with nothing sent; those before it were taken.
// Requests are copied, the slice is the caller's again at return. A provider may
// hold posted requests back until the next Poll. None of them, nor Poll, may
// block, allocate or log once the domain has warmed up.
type Domain interface {
	Name() string
	Addr() Address
	Limits() Limits

	// Register makes memory accessible. Regions of any size are accepted; where
	// the device has a smaller maximum the provider registers pieces.
	Register(m Memory, access Access) (Region, error)

	// AddPeer makes an address a target. Adding the same address again returns
	// the same handle. It may return before the peer is reachable: operations
	// then wait inside, and fail with StatusPeerLost if it never is.
	AddPeer(a Address) (Peer, error)
	// RemovePeer forgets a peer; what is in flight ends as StatusFlushed or
	// normally. Its handle, remotes and templates are invalid afterwards.
	RemovePeer(p Peer) error

	// Import checks a key that peer p sent and makes it usable. size is the
	// region's size as the peer told it.
	Import(p Peer, key RemoteKey, size uint64) (Remote, error)
	Release(r Remote) error

	NewTemplate(entries []TemplateEntry) (Template, error)
	FreeTemplate(t Template) error

	Post(wrs []WorkRequest) (int, error)
	// PostScatter posts ops against a template, every one under the same id; one
	// completion comes for each. Offsets and lengths are checked against the
	// regions, everything else was checked by NewTemplate.
	PostScatter(t Template, id WRID, ops []ScatterOp) (int, error)
	PostRecv(rrs []RecvRequest) (int, error)

	// Poll makes progress and fills out with what has completed or arrived.
	Poll(out []Completion) (int, error)

	Stats() Stats
	// Close flushes nothing: what is in flight is dropped. Regions close with
	// it. Idempotent.
	Close() error
}

// MemoryMapper is implemented by domains whose peers' memory this process can
// load and store directly (Limits.SharesMemory).
type MemoryMapper interface {
	// MapRemote returns the memory behind r. It stays mapped until r is released
	// or the domain closes.
	MapRemote(r Remote) (Memory, error)
}

// Waker is implemented by domains that can rouse a parked owner. SetWake is
// called once before the first Poll; wake may be called from any goroutine, and
// must be called when something arrived that a Poll would return.
type Waker interface {
	SetWake(wake func())
}

// Waiter is implemented by domains whose owner can sleep in the kernel until a
// Poll may bring something. Both are the owner's.
type Waiter interface {
	// WaitFD is what poll(2) shows readable then; -1 if the device at hand has no
	// such descriptor. Constant.
	WaitFD() int
	// Arm is called before each sleep; false: Poll first. No sleep should be longer
	// than some milliseconds: time limits of the domain pass in Poll alone.
	Arm() bool
}

// NIC describes a device that a provider can open.
type NIC struct {
	Name string
	NUMA int // -1 if unknown
}

// Provider opens domains. Providers are safe for concurrent use.
type Provider interface {
	Name() string
	NICs() []NIC
	// Open opens the NIC named nic.
	Open(nic string, cfg DomainConfig) (Domain, error)
	// Alloc returns memory that any domain of this provider can register with
	// full access, zeroed, page aligned. Free releases it.
	Alloc(size uint64) (Memory, error)
	Free(m Memory) error
}

// DomainConfig asks for queue sizes. Zero means the provider's default; what is
// granted is in Limits.
type DomainConfig struct {
	MaxSend int
	MaxRecv int
	MaxCQ   int
}

var (
	ErrAgain       = errors.New("transport: queue full, poll and post again")
	ErrBadHandle   = errors.New("transport: handle is not of this domain")
	ErrOutOfRange  = errors.New("transport: access outside the region")
	ErrUnsupported = errors.New("transport: not supported by this provider")
	ErrClosed      = errors.New("transport: domain is closed")
	ErrPeerLost    = errors.New("transport: peer lost")
	ErrBadAddress  = errors.New("transport: malformed address")
	ErrBadKey      = errors.New("transport: malformed remote key")
	ErrRegister    = errors.New("transport: registration failed")
)
