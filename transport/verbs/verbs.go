package verbs

import (
	"errors"
	"time"
)

// Config says which RDMA devices to use, and how. Start from the zero value with
// GIDIndex -1: 0 is an index.
type Config struct {
	// Devices are "mlx5_0" or, with a port, "mlx5_0:1"; none are all that have an
	// active port.
	Devices []string
	// GIDIndex is the entry of a port's GID table to use; -1 chooses by type and
	// scope.
	GIDIndex int
	// MTU in bytes: 256, 512, 1024, 2048 or 4096; 0 is the port's active one.
	MTU int
	// HandshakeTimeout bounds connecting to a peer; 0 is 10 s.
	HandshakeTimeout time.Duration
}

// Discovery is what libibverbs and this machine have to offer.
type Discovery struct {
	Library string // path of the library that was opened, "" if none was
	Version string // as far as the library tells
	Err     error  // why there are no Devices, nil if nothing is wrong
	Remedy  string // how to get over Err
	Devices []Device
	// MemlockBytes is the limit on locked memory, ^uint64(0) if there is none.
	// Registered memory is locked.
	MemlockBytes uint64
}

// Device is one RDMA device.
type Device struct {
	Name     string
	Err      error // why it could not be opened, nil if it could
	Firmware string
	PCI      string // bus address, "" for a software device
	NUMA     int    // -1 if unknown
	Software bool   // Soft-RoCE or the like: no hardware behind it
	Caps     Caps
	Ports    []Port
}

// Caps are limits of a device.
type Caps struct {
	MaxQP, MaxCQE, MaxMR, MaxSGE, MaxSRQ int
	MaxRegion                            uint64 // bytes
	MaxReads                             int    // reads and atomics in flight for each queue pair
	Atomic                               bool
}

// Port is one port of a device.
type Port struct {
	Num       int
	State     string // "active", "down", ...
	LinkLayer string // "ethernet" or "infiniband"
	Rate      uint64 // bytes a second, 0 if unknown
	MTU       int    // bytes, the active one
	LID       int    // 0 on Ethernet
	GIDs      []GID
}

// GID is one entry of a port's GID table.
type GID struct {
	Index int
	Type  string // "RoCE v2", "RoCE v1", "IB"
	Addr  string
}

// What New and Discover find missing; errors.Is tells them apart. The texts of
// wrapping errors carry the remedy.
var (
	ErrNotBuilt  = errors.New("libibverbs is not in this build: rebuild with -tags verbs, a C compiler and libibverbs' headers (Debian: libibverbs-dev)")
	ErrNoLibrary = errors.New("libibverbs is not on this machine")
	ErrNoDevice  = errors.New("there is no RDMA device")
)
