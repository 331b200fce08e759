package loopback

import (
	"encoding/binary"
	"fmt"

	"moerail/transport"
)

// Addresses and keys are little endian:
//
//	address  "mlA1" fabric:8 slot:4 generation:4
//	key      "mlK1" fabric:8 slot:4 generation:4 region:8 size:8 piece:8 n:4 n*device key:8
//
// slot is reused when a domain is gone; the generation never is, so a
// restarted domain has another address than its former life.

const (
	addressMagic = "mlA1"
	keyMagic     = "mlK1"
	addressBytes = 4 + 8 + 4 + 4
	keyHeadBytes = addressBytes + 8 + 8 + 8 + 4
	// maxPieces is how many device keys fit in a remote key.
	maxPieces = (transport.MaxKeyBytes - keyHeadBytes) / 8
)

// location names a domain of a fabric for ever.
type location struct {
	fabric     uint64
	slot       uint32
	generation uint32
}

func (l location) append(b []byte, magic string) []byte {
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint64(b, l.fabric)
	b = binary.LittleEndian.AppendUint32(b, l.slot)
	return binary.LittleEndian.AppendUint32(b, l.generation)
}

// decodeLocation reads the first addressBytes of b, which the caller has checked.
func decodeLocation(b []byte) location {
	return location{
		binary.LittleEndian.Uint64(b[4:]),
		binary.LittleEndian.Uint32(b[12:]),
		binary.LittleEndian.Uint32(b[16:]),
	}
}

func (l location) address() transport.Address {
	return l.append(make([]byte, 0, addressBytes), addressMagic)
}

func decodeAddress(a transport.Address) (location, error) {
	if len(a) != addressBytes {
		return location{}, fmt.Errorf("%w: %d bytes, want %d", transport.ErrBadAddress, len(a), addressBytes)
	}
	if string(a[:4]) != addressMagic {
		return location{}, fmt.Errorf("%w: starts with %x, not a loopback address", transport.ErrBadAddress, a[:4])
	}
	l := decodeLocation(a)
	if l.generation == 0 {
		return location{}, fmt.Errorf("%w: generation 0", transport.ErrBadAddress)
	}
	return l, nil
}

// regionKey is a decoded remote key.
type regionKey struct {
	location
	region uint64   // which region of that domain
	size   uint64   // bytes
	piece  uint64   // bytes under one device key; the last piece may be shorter
	device []uint64 // one key per piece
}

func (k *regionKey) encode() transport.RemoteKey {
	b := k.append(make([]byte, 0, keyHeadBytes+8*len(k.device)), keyMagic)
	b = binary.LittleEndian.AppendUint64(b, k.region)
	b = binary.LittleEndian.AppendUint64(b, k.size)
	b = binary.LittleEndian.AppendUint64(b, k.piece)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(k.device)))
	for _, d := range k.device {
		b = binary.LittleEndian.AppendUint64(b, d)
	}
	return b
}

// pieces is how many pieces of piece bytes cover size bytes.
func pieces(size, piece uint64) uint64 {
	n := size / piece
	if size%piece != 0 {
		n++
	}
	return n
}

func decodeKey(b transport.RemoteKey) (*regionKey, error) {
	if len(b) < keyHeadBytes || len(b) > transport.MaxKeyBytes {
		return nil, fmt.Errorf("%w: %d bytes, want %d to %d", transport.ErrBadKey, len(b), keyHeadBytes, transport.MaxKeyBytes)
	}
	if string(b[:4]) != keyMagic {
		return nil, fmt.Errorf("%w: starts with %x, not a loopback key", transport.ErrBadKey, b[:4])
	}
	k := &regionKey{
		location: decodeLocation(b),
		region:   binary.LittleEndian.Uint64(b[20:]),
		size:     binary.LittleEndian.Uint64(b[28:]),
		piece:    binary.LittleEndian.Uint64(b[36:]),
	}
	n := binary.LittleEndian.Uint32(b[44:])
	if k.size == 0 || k.piece == 0 || k.piece > k.size {
		return nil, fmt.Errorf("%w: region of %d bytes in pieces of %d", transport.ErrBadKey, k.size, k.piece)
	}
	if want := pieces(k.size, k.piece); uint64(n) != want || len(b) != keyHeadBytes+8*int(n) {
		return nil, fmt.Errorf("%w: %d bytes with %d device keys, want %d keys for %d bytes in pieces of %d",
			transport.ErrBadKey, len(b), n, want, k.size, k.piece)
	}
	k.device = make([]uint64, n)
	for i := range k.device {
		k.device[i] = binary.LittleEndian.Uint64(b[keyHeadBytes+8*i:])
	}
	return k, nil
}
