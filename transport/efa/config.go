package efa

import (
	"errors"
	"time"
)

// Config says what to open.
type Config struct {
	// Provider is libfabric's name of a provider: "efa" (the default), "tcp",
	// "tcp;ofi_rxm", "net", "shm", ... "tcp" takes the library's native "tcp" with
	// reliable datagrams if it has that (2.x), else "net", which is its name in 1.x, else
	// "tcp;ofi_rxm". In 1.17 "net" has no atomics; "tcp;ofi_rxm" has, and is slower.
	Provider string
	// NumNICs is how many domains to offer. 0 means as many as there are devices
	// of a hardware provider, and one of a software provider, whose interfaces are
	// no rails of one network. More than there are devices opens devices several
	// times, which only software providers allow.
	NumNICs int
	// Interface is the device or network interface to use. Empty means all, in the
	// library's order, IPv4 before IPv6, and loopback last.
	Interface string
	// ConnectTimeout is how long a peer may owe something and end nothing before it
	// is lost; 1 s more for each 16 MiB that it owes, since a long operation gives
	// no sign of life until its end. 0 means 10 s.
	ConnectTimeout time.Duration
	// DeviceMemory asks for providers that can register memory of GPUs.
	DeviceMemory bool
	// Library is the path of libfabric; empty means libfabric.so.1 as the dynamic
	// linker finds it.
	Library string
	// MaxRegion bounds what is registered under one key, in bytes, a multiple of
	// 4096; larger regions are registered in pieces. 0 means no bound, for
	// libfabric has no way to say what a device's is.
	MaxRegion uint64
}

const (
	defaultProvider       = "efa"
	defaultConnectTimeout = 10 * time.Second
	remedyBuild           = "rebuild with -tags libfabric and CGO_ENABLED=1"
	remedyLibrary         = "install libfabric (Debian: apt-get install libfabric1; AWS: the EFA installer) or name its path"
)

var (
	// ErrNotBuilt reports a binary without libfabric support.
	ErrNotBuilt = errors.New("efa: libfabric is not in this build: " + remedyBuild)
	// ErrNoLibrary reports that libfabric could not be opened.
	ErrNoLibrary = errors.New("efa: no libfabric on this machine: " + remedyLibrary)
	// ErrNoProvider reports that the library has no provider of the name, or that
	// it has no device, or that it can not do what is needed.
	ErrNoProvider = errors.New("efa: no usable libfabric provider")
)

// Discovery is what this machine's libfabric offers.
type Discovery struct {
	Library   string // path
	Version   string // "1.17"
	Headers   string // version of the headers of this build
	Err       error  // ErrNotBuilt, ErrNoLibrary, ...
	Remedy    string // what to do about Err
	Providers []Found
}

// Found is one provider with reliable datagrams.
type Found struct {
	Name     string
	Devices  []string
	Err      error // why it can not be used
	Features Features
	Missing  []string // what it lacks, each with the consequence
}

// Features is what a provider says of itself, and what was seen to work.
type Features struct {
	RMA         bool
	Read        bool
	Atomic      bool
	Tagged      bool
	ImmBytes    int // data that can go beside a write, at most 8; below 4 no immediates
	InjectBytes uint64
	MaxMessage  uint64 // 0 = no limit
	SendQueue   uint64 // operations
	MRMode      string // "FI_MR_VIRT_ADDR, ..." or "none"
	AddrFormat  string
	Progress    string // "manual", "auto"
	Tried       bool   // write, immediate, read and atomics were done, not only claimed
}
