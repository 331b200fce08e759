//go:build libfabric && cgo

package efa

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"

	"moerail/internal/fabric"
	"moerail/transport"
)

// identity is what a domain's address says.
//
//	 0 magic 4, version 2, flags 1, immediate bytes 1
//	 8 generation 8      random, never 0; its low half marks messages and immediates
//	16 protocol 4, address format 4
//	24 home key 8, home address 8: a small region that takes empty writes
//	40 length of endpoint 2, of provider 1, zero 5
//	48 endpoint, provider, sum 8 of all before; little endian
type identity struct {
	flags      uint8
	immBytes   uint8 // width of the data beside a write: 0, 4 or 8
	generation uint64
	protocol   uint32 // libfabric's FI_PROTO_*
	format     uint32 // libfabric's FI_SOCKADDR_IN, ...
	homeKey    uint64
	homeAddr   uint64
	endpoint   []byte // as fi_getname gave it
	provider   string // for error texts
}

const (
	addressMagic   = 0x6d526c66 // "mRlf"
	addressVersion = 1
	addressHead    = 48
	sumBytes       = 8
	maxEndpoint    = 256

	flagTagged = 1
	flagsKnown = flagTagged
)

// life is the mark of a generation in tags and in data beside writes.
func (id *identity) life() uint32 { return uint32(id.generation) }

func sum(b []byte) uint64 {
	h := fnv.New64a()
	h.Write(b)
	return h.Sum64()
}

func (id *identity) encode() transport.Address {
	b := make([]byte, addressHead, addressHead+len(id.endpoint)+len(id.provider)+sumBytes)
	le := binary.LittleEndian
	le.PutUint32(b, addressMagic)
	le.PutUint16(b[4:], addressVersion)
	b[6], b[7] = id.flags, id.immBytes
	le.PutUint64(b[8:], id.generation)
	le.PutUint32(b[16:], id.protocol)
	le.PutUint32(b[20:], id.format)
	le.PutUint64(b[24:], id.homeKey)
	le.PutUint64(b[32:], id.homeAddr)
	le.PutUint16(b[40:], uint16(len(id.endpoint)))
	b[42] = uint8(len(id.provider))
	b = append(b, id.endpoint...)
	b = append(b, id.provider...)
	return le.AppendUint64(b, sum(b))
}

func decodeAddress(a transport.Address) (identity, error) {
	var id identity
	bad := func(format string, args ...any) (identity, error) {
		return identity{}, fmt.Errorf("%w: "+format, append([]any{transport.ErrBadAddress}, args...)...)
	}
	le := binary.LittleEndian
	if len(a) < addressHead+sumBytes || len(a) > transport.MaxAddressBytes {
		return bad("libfabric address of %d bytes, want %d to %d", len(a), addressHead+sumBytes, transport.MaxAddressBytes)
	}
	if m := le.Uint32(a); m != addressMagic {
		return bad("not a libfabric address (starts %#x): the peer uses another fabric", m)
	}
	if v := le.Uint16(a[4:]); v != addressVersion {
		return bad("libfabric address of version %d, this is version %d", v, addressVersion)
	}
	body := a[:len(a)-sumBytes]
	if le.Uint64(a[len(body):]) != sum(body) {
		return bad("libfabric address whose sum is wrong: it was altered on its way")
	}
	n, p := int(le.Uint16(a[40:])), int(a[42])
	if n == 0 || n > maxEndpoint || p == 0 || addressHead+n+p != len(body) {
		return bad("libfabric address with an endpoint of %d and a provider of %d bytes in %d", n, p, len(a))
	}
	id = identity{
		flags: a[6], immBytes: a[7], generation: le.Uint64(a[8:]), protocol: le.Uint32(a[16:]), format: le.Uint32(a[20:]),
		homeKey: le.Uint64(a[24:]), homeAddr: le.Uint64(a[32:]),
		endpoint: append([]byte(nil), a[addressHead:addressHead+n]...), provider: string(a[addressHead+n : addressHead+n+p]),
	}
	if id.flags&^flagsKnown != 0 || id.immBytes != 0 && id.immBytes != 4 && id.immBytes != 8 || id.life() == 0 || a[43]|a[44]|a[45]|a[46]|a[47] != 0 {
		return bad("libfabric address with flags %#x, immediates of %d bytes, generation %#x or reserved bytes in use", id.flags, id.immBytes, id.generation)
	}
	return id, nil
}

// fits tells why a domain with identity id can not talk to peer, if so.
func (id *identity) fits(peer *identity) error {
	differs := func(what string, there, here any) error {
		return fmt.Errorf("%w: %s is %v at the peer (provider %s) and %v here (provider %s): all ranks need the same provider and kind of interface",
			transport.ErrBadAddress, what, there, peer.provider, here, id.provider)
	}
	switch {
	case peer.protocol != id.protocol:
		return differs("libfabric's protocol", peer.protocol, id.protocol)
	case peer.format != id.format:
		return differs("the address format", formatName(peer.format), formatName(id.format))
	case peer.immBytes != id.immBytes:
		return differs("the width of immediates", peer.immBytes, id.immBytes)
	case peer.flags != id.flags:
		return differs("the use of tagged messages", peer.flags&flagTagged != 0, id.flags&flagTagged != 0)
	}
	// The provider copies an address without being told its length.
	if id.format == fabric.FormatString {
		if i := bytes.IndexByte(peer.endpoint, 0); i != len(peer.endpoint)-1 || i < 1 {
			return fmt.Errorf("%w: an endpoint's name that does not end where its bytes do", transport.ErrBadAddress)
		}
	} else if len(peer.endpoint) != len(id.endpoint) {
		return differs("the length of endpoint addresses", len(peer.endpoint), len(id.endpoint))
	}
	// Of a socket address it takes the length from the family that it says.
	if id.isSocket() && !bytes.Equal(peer.endpoint[:familyBytes], id.endpoint[:familyBytes]) {
		return fmt.Errorf("%w: an endpoint of address format %s that says it is of family %#x", transport.ErrBadAddress, formatName(id.format), peer.endpoint[:familyBytes])
	}
	return nil
}

// familyBytes is where a socket address says of which family it is.
const familyBytes = 2

func (id *identity) isSocket() bool {
	switch id.format {
	case fabric.FormatSockaddr, fabric.FormatSockaddrIn, fabric.FormatSockaddrIn6:
		return len(id.endpoint) >= familyBytes
	}
	return false
}

func formatName(f uint32) string {
	switch f {
	case fabric.FormatSockaddr:
		return "socket address"
	case fabric.FormatSockaddrIn:
		return "IPv4"
	case fabric.FormatSockaddrIn6:
		return "IPv6"
	case fabric.FormatString:
		return "name"
	case fabric.FormatEFA:
		return "EFA"
	}
	return fmt.Sprintf("format %d", f)
}
