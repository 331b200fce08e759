package verbs

// Discovery is what this machine offers, for people to read.
type Discovery struct {
	Library string // the file, "" if none was loaded
	Version string // what its name says: the ABI, then the version of rdma-core
	DMABuf  bool   // the library can register DMA buffers
	Err     error  // why there is no device to use
	Remedy  string // what to do about it
	Devices []Device
	Memlock uint64 // RLIMIT_MEMLOCK in bytes; ^uint64(0) is no limit
	// MemlockRemedy says how to raise the limit where it is low; else "".
	MemlockRemedy string
}

// Device is one RDMA device.
type Device struct {
	Name     string
	Err      error // why it can not be used; then the rest may be unset
	Firmware string
	Vendor   uint32 // as of PCI
	Part     uint32
	PCI      string // such as "0000:17:00.0"; "" for software devices
	Software bool   // no hardware behind it, such as soft-RoCE
	NUMA     int    // -1 if unknown
	// MaxQueuePairs, MaxRegion and MaxReads are limits of the device; MaxReads is
	// how many reads and atomics a queue pair answers at once.
	MaxQueuePairs int
	MaxRegion     uint64 // bytes
	MaxReads      int
	Atomics       bool
	Ports         []Port
}

// Port is one port of a device.
type Port struct {
	Number         int
	State          string // "active", "down", ...
	Active         bool
	LinkLayer      string // "Ethernet" or "InfiniBand"
	BytesPerSecond uint64 // nominal, 0 if unknown
	MTU            int    // bytes
	LID            uint16
	MaxMessage     uint64 // bytes
	GIDs           []GID
}

// GID is one line of a port's GID table.
type GID struct {
	Index   int
	Type    string // "RoCE v2", "RoCE v1" or "InfiniBand"
	Address string // as an IP address
	Chosen  bool   // what GIDIndex -1 takes
}
