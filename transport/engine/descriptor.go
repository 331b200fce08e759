package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"moerail/transport"
)

// Address names an engine: its life (another one after a restart) and its NICs,
// in its own order.
type Address struct {
	Generation uint64
	NICs       []transport.Address
}

// NICKey is how one NIC of a peer gives access to a region.
type NICKey struct {
	Addr transport.Address
	Key  transport.RemoteKey
}

// Descriptor is what a peer needs to access a region: its size in bytes and, per
// NIC of the owner, an address and a key. The zero Descriptor describes nothing.
type Descriptor struct {
	Size uint64
	NICs []NICKey
}

// Both encodings are little endian:
//
//	byte   kind and version
//	byte   number of NICs, 0 (a zero descriptor) or 1 to MaxNICs
//	u64    generation, or size
//	per NIC: u16 length, address; in a descriptor then u32 length, key
const (
	addressKind    = 0xa1
	descriptorKind = 0xd1
	headBytes      = 10
)

// IsZero reports a descriptor of nothing.
func (d Descriptor) IsZero() bool { return d.Size == 0 && len(d.NICs) == 0 }

// Equal compares generation and NICs.
func (a Address) Equal(b Address) bool {
	if a.Generation != b.Generation || len(a.NICs) != len(b.NICs) {
		return false
	}
	for i := range a.NICs {
		if !bytes.Equal(a.NICs[i], b.NICs[i]) {
			return false
		}
	}
	return true
}

func (a Address) clone() Address {
	c := Address{Generation: a.Generation}
	for _, n := range a.NICs {
		c.NICs = append(c.NICs, append(transport.Address(nil), n...))
	}
	return c
}

func (a Address) validate() error {
	if len(a.NICs) < 1 || len(a.NICs) > MaxNICs {
		return fmt.Errorf("%w: address of %d NICs, want 1 to %d", ErrMalformed, len(a.NICs), MaxNICs)
	}
	for i, n := range a.NICs {
		if len(n) == 0 || len(n) > transport.MaxAddressBytes {
			return fmt.Errorf("%w: address of NIC %d has %d bytes, want 1 to %d", ErrMalformed, i, len(n), transport.MaxAddressBytes)
		}
	}
	return nil
}

func (d Descriptor) validate() error {
	if d.IsZero() {
		return nil
	}
	if d.Size == 0 || len(d.NICs) < 1 || len(d.NICs) > MaxNICs {
		return fmt.Errorf("%w: descriptor of %d bytes on %d NICs, want 1 to %d NICs", ErrMalformed, d.Size, len(d.NICs), MaxNICs)
	}
	for i, n := range d.NICs {
		if len(n.Addr) == 0 || len(n.Addr) > transport.MaxAddressBytes {
			return fmt.Errorf("%w: address of NIC %d has %d bytes, want 1 to %d", ErrMalformed, i, len(n.Addr), transport.MaxAddressBytes)
		}
		if len(n.Key) > transport.MaxKeyBytes {
			return fmt.Errorf("%w: key of NIC %d has %d bytes, want at most %d", ErrMalformed, i, len(n.Key), transport.MaxKeyBytes)
		}
	}
	return nil
}

// MarshalBinary encodes the address for ParseAddress.
func (a Address) MarshalBinary() ([]byte, error) {
	if err := a.validate(); err != nil {
		return nil, err
	}
	b := binary.LittleEndian.AppendUint64([]byte{addressKind, byte(len(a.NICs))}, a.Generation)
	for _, n := range a.NICs {
		b = append(binary.LittleEndian.AppendUint16(b, uint16(len(n))), n...)
	}
	return b, nil
}

// MarshalBinary encodes the descriptor for ParseDescriptor.
func (d Descriptor) MarshalBinary() ([]byte, error) {
	if err := d.validate(); err != nil {
		return nil, err
	}
	b := binary.LittleEndian.AppendUint64([]byte{descriptorKind, byte(len(d.NICs))}, d.Size)
	for _, n := range d.NICs {
		b = append(binary.LittleEndian.AppendUint16(b, uint16(len(n.Addr))), n.Addr...)
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(n.Key))), n.Key...)
	}
	return b, nil
}

// ParseAddress decodes what a peer sent. Every length is checked before it is
// used, and bytes left over are an error. The result does not refer to b.
func ParseAddress(b []byte) (Address, error) {
	var a Address
	n, word, b, err := parseHead(b, addressKind, "address")
	if err != nil {
		return Address{}, err
	}
	a.Generation = word
	for i := 0; i < n; i++ {
		var nic []byte
		if nic, b, err = parseBytes(b, 2, transport.MaxAddressBytes); err != nil {
			return Address{}, fmt.Errorf("address of NIC %d: %w", i, err)
		}
		a.NICs = append(a.NICs, nic)
	}
	if len(b) != 0 {
		return Address{}, fmt.Errorf("%w: %d bytes after the address", ErrMalformed, len(b))
	}
	if err := a.validate(); err != nil {
		return Address{}, err
	}
	return a, nil
}

// ParseDescriptor decodes what a peer sent; see ParseAddress.
func ParseDescriptor(b []byte) (Descriptor, error) {
	var d Descriptor
	n, word, b, err := parseHead(b, descriptorKind, "descriptor")
	if err != nil {
		return Descriptor{}, err
	}
	d.Size = word
	for i := 0; i < n; i++ {
		var k NICKey
		var addr, key []byte
		if addr, b, err = parseBytes(b, 2, transport.MaxAddressBytes); err != nil {
			return Descriptor{}, fmt.Errorf("address of NIC %d: %w", i, err)
		}
		if key, b, err = parseBytes(b, 4, transport.MaxKeyBytes); err != nil {
			return Descriptor{}, fmt.Errorf("key of NIC %d: %w", i, err)
		}
		k.Addr, k.Key = addr, key
		d.NICs = append(d.NICs, k)
	}
	if len(b) != 0 {
		return Descriptor{}, fmt.Errorf("%w: %d bytes after the descriptor", ErrMalformed, len(b))
	}
	if err := d.validate(); err != nil {
		return Descriptor{}, err
	}
	return d, nil
}

func parseHead(b []byte, kind byte, what string) (nics int, word uint64, rest []byte, err error) {
	if len(b) < headBytes {
		return 0, 0, nil, fmt.Errorf("%w: %s of %d bytes, want at least %d", ErrMalformed, what, len(b), headBytes)
	}
	if b[0] != kind {
		return 0, 0, nil, fmt.Errorf("%w: %s starts with %#x, want %#x", ErrMalformed, what, b[0], kind)
	}
	if b[1] > MaxNICs {
		return 0, 0, nil, fmt.Errorf("%w: %s of %d NICs, want at most %d", ErrMalformed, what, b[1], MaxNICs)
	}
	return int(b[1]), binary.LittleEndian.Uint64(b[2:]), b[headBytes:], nil
}

// parseBytes takes a length of width bytes and as many bytes from b.
func parseBytes(b []byte, width int, limit uint32) (out, rest []byte, err error) {
	if len(b) < width {
		return nil, nil, fmt.Errorf("%w: cut off in a length", ErrMalformed)
	}
	n := uint32(binary.LittleEndian.Uint16(b))
	if width == 4 {
		n = binary.LittleEndian.Uint32(b)
	}
	b = b[width:]
	if n > limit || uint64(n) > uint64(len(b)) {
		return nil, nil, fmt.Errorf("%w: length %d, have %d bytes, limit %d", ErrMalformed, n, len(b), limit)
	}
	return append([]byte(nil), b[:n]...), b[n:], nil
}
