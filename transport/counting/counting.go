// Package counting is a provider whose domains check every request as a real
// one must, count it, and move nothing. It measures what posting itself costs:
//
//	Post ─> handles, rights of use, both ranges ─> a record ─> Poll: StatusOK
//
// Nothing ever arrives at a peer: no payload, no immediate, no message.
package counting

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"moerail/internal/mem"
	"moerail/transport"
)

const (
	defaultSend            = 1024
	maxDepth               = 1 << 20
	maxInline              = 64
	addressMagic, keyMagic = "mcA1", "mcK1"
	addressBytes           = 4 + 8
	keyBytes               = 4 + 8 + 8 + 8
)

// Provider opens counting domains. Its zero value is ready for use.
type Provider struct{}

var _ transport.Provider = Provider{}

// Name is "counting".
func (Provider) Name() string { return "counting" }

// NICs lists one, though Open takes any name.
func (Provider) NICs() []transport.NIC { return []transport.NIC{{Name: "count0", NUMA: -1}} }

// Alloc returns memory off the Go heap.
func (Provider) Alloc(size uint64) (transport.Memory, error) { return mem.Alloc(size) }

// Free releases what Alloc returned.
func (Provider) Free(m transport.Memory) error { return mem.Free(m) }

// numDomains gives each domain an address for ever.
var numDomains atomic.Uint64

// Open makes a domain. Receives are refused: MaxRecv is 0.
func (Provider) Open(nic string, cfg transport.DomainConfig) (transport.Domain, error) {
	send := cfg.MaxSend
	if send == 0 {
		send = defaultSend
	}
	if send < 1 || send > maxDepth {
		return nil, fmt.Errorf("counting: open NIC %s: MaxSend is %d, want 1 to %d", nic, send, maxDepth)
	}
	return newDomain(nic, numDomains.Add(1), send), nil
}

func encodeAddress(domain uint64) transport.Address {
	return binary.LittleEndian.AppendUint64([]byte(addressMagic), domain)
}

func decodeAddress(a transport.Address) (domain uint64, err error) {
	if len(a) != addressBytes || string(a[:4]) != addressMagic {
		return 0, fmt.Errorf("%w: %d bytes, want %d that start with %q", transport.ErrBadAddress, len(a), addressBytes, addressMagic)
	}
	domain = binary.LittleEndian.Uint64(a[4:])
	if domain == 0 || domain > numDomains.Load() {
		return 0, fmt.Errorf("%w: domain %d was never opened", transport.ErrBadAddress, domain)
	}
	return domain, nil
}

type regionKey struct{ domain, region, size uint64 }

func (k regionKey) encode() transport.RemoteKey {
	b := binary.LittleEndian.AppendUint64([]byte(keyMagic), k.domain)
	b = binary.LittleEndian.AppendUint64(b, k.region)
	return binary.LittleEndian.AppendUint64(b, k.size)
}

func decodeKey(b transport.RemoteKey) (regionKey, error) {
	if len(b) != keyBytes || string(b[:4]) != keyMagic {
		return regionKey{}, fmt.Errorf("%w: %d bytes, want %d that start with %q", transport.ErrBadKey, len(b), keyBytes, keyMagic)
	}
	k := regionKey{binary.LittleEndian.Uint64(b[4:]), binary.LittleEndian.Uint64(b[12:]), binary.LittleEndian.Uint64(b[20:])}
	if k.size == 0 {
		return k, fmt.Errorf("%w: region of 0 bytes", transport.ErrBadKey)
	}
	return k, nil
}
