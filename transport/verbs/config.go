package verbs

import (
	"errors"
	"fmt"
	"time"
)

// Config chooses devices and tunes queues. Take DefaultConfig and change it: in
// the zero value GIDIndex names line 0 of the table.
type Config struct {
	// Devices are the NICs to offer: "mlx5_0", or "mlx5_0:1" for port 1 of it.
	// Empty means every active port of the devices that have reliable connections
	// and can be opened; Discover says what is wrong with others.
	Devices []string
	// GIDIndex is the line of the port's GID table to use; -1 chooses by type and
	// scope: RoCE v2 with a global address first.
	GIDIndex int
	// MTU of the connections in bytes: 256, 512, 1024, 2048 or 4096, at most the
	// port's. 0 is the port's. Two ports use the smaller of theirs.
	MTU int
	// SendDepth is how many requests each queue pair holds; 0 is 256. More wait
	// in the domain, up to DomainConfig.MaxSend.
	SendDepth int
	// ImmDepth is how many receives for immediates are kept posted; 0 is 2048. A
	// burst of more than this between two polls is held back at its senders
	// (Stats.ReceiverStall), none is lost.
	ImmDepth int
	// AckTimeout is the exponent of the time that a packet waits for its
	// acknowledgement, 4.096 us << AckTimeout; 0 is 14, 67 ms.
	AckTimeout int
	// Retries is how often a packet is sent again before its peer counts as lost,
	// 1 to 7; 0 is 7. Devices may stretch the time that this takes. On Soft-RoCE,
	// which takes 7 for ever, it is 6 at most.
	Retries int
	// HandshakeTimeout is how long a peer may take to answer before requests that
	// wait for it end as lost; 0 is 5 s.
	HandshakeTimeout time.Duration
	// ServiceLevel and TrafficClass go into every packet's headers.
	ServiceLevel, TrafficClass uint8
	// PKeyIndex is the line of the partition key table to use.
	PKeyIndex int
	// MaxRegion cuts regions into pieces of this many bytes, a multiple of 4096;
	// 0 is the device's own maximum.
	MaxRegion uint64
	// StrictOrdering registers memory without relaxed ordering: for programs whose
	// remote readers look at memory without waiting for an immediate. It costs
	// bandwidth.
	StrictOrdering bool
}

// DefaultConfig offers every active port and chooses everything else.
func DefaultConfig() Config { return Config{GIDIndex: -1} }

const (
	defaultSendDepth  = 256
	defaultImmDepth   = 2048
	defaultAckTimeout = 14
	defaultRetries    = 7
	defaultHandshake  = 5 * time.Second
	maxDepth          = 1 << 15
)

// ErrNotBuilt, ErrNoLibrary and ErrNoDevice say why there is no provider. Their
// texts carry the remedy.
var (
	ErrNotBuilt  = errors.New("verbs: not in this build: rebuild with -tags verbs, with cgo and the headers of rdma-core (libibverbs-dev)")
	ErrNoLibrary = errors.New("verbs: libibverbs is missing: install libibverbs1 and ibverbs-providers (Debian), or rdma-core")
	ErrNoDevice  = errors.New("verbs: no usable RDMA device: load the NIC's driver and ib_uverbs, and give a container /dev/infiniband and a RLIMIT_MEMLOCK")
)

// withDefaults checks a configuration; all faults are told at once.
func (c Config) withDefaults() (Config, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("verbs: "+format, args...)) }
	number := func(name string, v *int, def, lo, hi int) {
		if *v == 0 {
			*v = def
		}
		if *v < lo || *v > hi {
			bad("%s is %d, want %d to %d", name, *v, lo, hi)
		}
	}
	number("SendDepth", &c.SendDepth, defaultSendDepth, 2, maxDepth)
	number("ImmDepth", &c.ImmDepth, defaultImmDepth, 1, maxDepth)
	number("AckTimeout", &c.AckTimeout, defaultAckTimeout, 1, 31)
	number("Retries", &c.Retries, defaultRetries, 1, 7)
	if c.GIDIndex < -1 || c.GIDIndex > 255 {
		bad("GIDIndex is %d, want -1 to 255", c.GIDIndex)
	}
	if c.PKeyIndex < 0 || c.PKeyIndex > 65535 {
		bad("PKeyIndex is %d, want 0 to 65535", c.PKeyIndex)
	}
	if c.MTU != 0 && mtuCode(c.MTU) == 0 {
		bad("MTU is %d, want 256, 512, 1024, 2048 or 4096", c.MTU)
	}
	if c.ServiceLevel > 15 {
		bad("ServiceLevel is %d, want 0 to 15", c.ServiceLevel)
	}
	if c.MaxRegion%4096 != 0 {
		bad("MaxRegion is %d, want a multiple of 4096", c.MaxRegion)
	}
	if c.HandshakeTimeout == 0 {
		c.HandshakeTimeout = defaultHandshake
	}
	if c.HandshakeTimeout < time.Millisecond || c.HandshakeTimeout > time.Hour {
		bad("HandshakeTimeout is %v, want 1ms to 1h", c.HandshakeTimeout)
	}
	c.Devices = append([]string(nil), c.Devices...)
	return c, errors.Join(errs...)
}

// mtuCode is libibverbs' number for an MTU in bytes: 1 for 256, up to 5 for
// 4096; 0 for anything else.
func mtuCode(bytes int) int {
	for code := 1; code <= 5; code++ {
		if bytes == 128<<code {
			return code
		}
	}
	return 0
}
