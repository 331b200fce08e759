package efa

import (
	"errors"
	"time"
)

// Config says which of libfabric's providers to use, and how. The zero value is
// EFA with every device.
type Config struct {
	// Provider is libfabric's own name: "efa" ("" is the same), "tcp", "tcp;ofi_rxm",
	// "net", "shm", ... "tcp" takes what the library has for reliable datagrams over
	// TCP, whatever it calls it: the native provider ("tcp" in 2.x, "net" in 1.17)
	// or "tcp;ofi_rxm".
	Provider string
	// NumNICs is how many domains to offer; 0 is one for each device. A number
	// above that of the devices opens devices several times, which only software
	// providers allow.
	NumNICs int
	// Interface restricts the devices to one, by the name of its network interface
	// or domain ("lo", "eth0", "rdmap0s6-rdm"); "" is every usable one, loopback
	// only where there is no other.
	Interface string
	// ConnectTimeout is how long a peer may take no operation before it is lost;
	// 0 is 10 s.
	ConnectTimeout time.Duration
}

// Discovery is what libfabric and this machine have to offer.
type Discovery struct {
	Library   string  // path of the library that was opened, "" if none was
	Version   string  // of the library, as "1.17.0"
	Err       error   // why there are no Providers, nil if nothing is wrong
	Remedy    string  // how to get over Err
	Providers []Found // in the order in which the library prefers them
}

// Found is one provider of the library.
type Found struct {
	Name     string   // libfabric's
	Devices  []string // its domains on this machine
	Err      error    // why it cannot carry moerail's writes, nil if it can
	Features Features
	Missing  []string // what it has not, each with the consequence
}

// Features are what a provider reports of itself.
type Features struct {
	RMA        bool   // one-sided writes
	ImmBytes   int    // bytes of an immediate that a write can carry; 0 is none
	Read       bool   // one-sided reads
	Atomic     bool   // 8-byte fetch-and-add and compare-and-swap
	Inject     int    // bytes that a post can carry inline
	MRMode     string // libfabric's words for what memory registration must obey
	Progress   string // "auto" or "manual"
	MaxMessage uint64 // bytes
}

// What New and Discover find missing; errors.Is tells them apart. The texts of
// wrapping errors carry the remedy.
var (
	ErrNotBuilt   = errors.New("libfabric is not in this build: rebuild with -tags libfabric, a C compiler and libfabric's headers (Debian: libfabric-dev)")
	ErrNoLibrary  = errors.New("libfabric's library is not on this machine")
	ErrNoProvider = errors.New("libfabric has no such provider here")
)
