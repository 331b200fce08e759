package verbs

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"

	"moerail/transport"
)

// identity is what a domain's address says.
//
//	offset 0 magic, 4 version, 6 link layer, 7 MTU code, 8 generation, 16 GID,
//	32 UD queue pair, 36 queue key, 40 LID, 42 reads, 43 zero, 44 process,
//	48 checksum; 56 bytes, little endian
//
// The checksum is against accidents: what is altered on the way is refused
// here, and not by the network after a wait.
type identity struct {
	generation uint64 // never 0; differs in every life
	gid        [16]byte
	qpn        uint32 // of the UD queue pair; 24 bits
	qkey       uint32 // its top bit is 0
	pid        uint32 // for error texts only
	lid        uint16 // 0 on RoCE
	ethernet   bool
	mtu        uint8 // code, 1 to 5
	reads      uint8 // how many reads and atomics the domain answers at once, for a queue pair
}

const (
	wireVersion  = 1
	addressMagic = 0x6d527662 // "mRvb"
	addressBytes = 56
	keyMagic     = 0x6d52766b // "mRvk"
	keyHeader    = 48
	maxPieces    = (transport.MaxKeyBytes - keyHeader - 8) / 4
)

func checksum(b []byte) uint64 {
	h := fnv.New64a()
	h.Write(b)
	return h.Sum64()
}

func (id *identity) encode() transport.Address {
	b := make([]byte, addressBytes)
	binary.LittleEndian.PutUint32(b, addressMagic)
	binary.LittleEndian.PutUint16(b[4:], wireVersion)
	if id.ethernet {
		b[6] = 1
	}
	b[7] = id.mtu
	binary.LittleEndian.PutUint64(b[8:], id.generation)
	copy(b[16:], id.gid[:])
	binary.LittleEndian.PutUint32(b[32:], id.qpn)
	binary.LittleEndian.PutUint32(b[36:], id.qkey)
	binary.LittleEndian.PutUint16(b[40:], id.lid)
	b[42] = id.reads
	binary.LittleEndian.PutUint32(b[44:], id.pid)
	binary.LittleEndian.PutUint64(b[48:], checksum(b[:48]))
	return b
}

func decodeAddress(b []byte) (identity, error) {
	var id identity
	if len(b) != addressBytes {
		return id, fmt.Errorf("%w: verbs address of %d bytes, want %d", transport.ErrBadAddress, len(b), addressBytes)
	}
	if m := binary.LittleEndian.Uint32(b); m != addressMagic {
		return id, fmt.Errorf("%w: not a verbs address (starts %#x)", transport.ErrBadAddress, m)
	}
	if v := binary.LittleEndian.Uint16(b[4:]); v != wireVersion {
		return id, fmt.Errorf("%w: verbs version %d, this is version %d", transport.ErrBadAddress, v, wireVersion)
	}
	if got, want := checksum(b[:48]), binary.LittleEndian.Uint64(b[48:]); got != want {
		return id, fmt.Errorf("%w: checksum %#x, the address says %#x", transport.ErrBadAddress, got, want)
	}
	id.ethernet, id.mtu, id.reads = b[6] == 1, b[7], b[42]
	id.generation = binary.LittleEndian.Uint64(b[8:])
	copy(id.gid[:], b[16:])
	id.qpn = binary.LittleEndian.Uint32(b[32:])
	id.qkey = binary.LittleEndian.Uint32(b[36:])
	id.lid = binary.LittleEndian.Uint16(b[40:])
	id.pid = binary.LittleEndian.Uint32(b[44:])
	if id.generation == 0 || b[6] > 1 || b[43] != 0 || id.mtu < 1 || id.mtu > 5 || id.qpn >= 1<<24 || id.qkey >= 1<<31 ||
		(id.ethernet && id.gid == [16]byte{}) || (!id.ethernet && id.lid == 0 && id.gid == [16]byte{}) {
		return id, fmt.Errorf("%w: verbs address with generation %#x, link layer %d, MTU code %d, queue pair %#x, queue key %#x, GID %x, LID %d",
			transport.ErrBadAddress, id.generation, b[6], id.mtu, id.qpn, id.qkey, id.gid, id.lid)
	}
	return id, nil
}

// String names the peer for error texts.
func (id *identity) String() string {
	return fmt.Sprintf("%s queue pair %d, process %d", gidText(id.gid), id.qpn, id.pid)
}

// gidText writes a GID as the IP address that it is on RoCE.
func gidText(gid [16]byte) string { return netip.AddrFrom16(gid).Unmap().String() }

// regionKey is what a RemoteKey says.
//
//	offset 0 magic, 4 version, 6 access, 7 zero, 8 generation of the domain,
//	16 base address, 24 size, 32 bytes of a piece, 40 pieces, 44 zero,
//	48 an rkey for each piece, then a checksum; little endian
type regionKey struct {
	generation uint64
	base       uint64
	size       uint64
	piece      uint64 // bytes under one rkey, but for the last
	access     transport.Access
	rkeys      []uint32
}

func (k *regionKey) encode() transport.RemoteKey {
	end := keyHeader + 4*len(k.rkeys)
	b := make([]byte, end+8)
	binary.LittleEndian.PutUint32(b, keyMagic)
	binary.LittleEndian.PutUint16(b[4:], wireVersion)
	b[6] = byte(k.access)
	binary.LittleEndian.PutUint64(b[8:], k.generation)
	binary.LittleEndian.PutUint64(b[16:], k.base)
	binary.LittleEndian.PutUint64(b[24:], k.size)
	binary.LittleEndian.PutUint64(b[32:], k.piece)
	binary.LittleEndian.PutUint32(b[40:], uint32(len(k.rkeys)))
	for i, r := range k.rkeys {
		binary.LittleEndian.PutUint32(b[keyHeader+4*i:], r)
	}
	binary.LittleEndian.PutUint64(b[end:], checksum(b[:end]))
	return b
}

func decodeKey(b transport.RemoteKey) (regionKey, error) {
	var k regionKey
	if len(b) < keyHeader+4+8 || len(b) > transport.MaxKeyBytes {
		return k, fmt.Errorf("%w: verbs key of %d bytes", transport.ErrBadKey, len(b))
	}
	if m, v := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint16(b[4:]); m != keyMagic || v != wireVersion {
		return k, fmt.Errorf("%w: not a verbs key of version %d (starts %#x, version %d)", transport.ErrBadKey, wireVersion, m, v)
	}
	end := len(b) - 8
	if got, want := checksum(b[:end]), binary.LittleEndian.Uint64(b[end:]); got != want {
		return k, fmt.Errorf("%w: checksum %#x, the key says %#x", transport.ErrBadKey, got, want)
	}
	k.access = transport.Access(b[6])
	k.generation = binary.LittleEndian.Uint64(b[8:])
	k.base = binary.LittleEndian.Uint64(b[16:])
	k.size = binary.LittleEndian.Uint64(b[24:])
	k.piece = binary.LittleEndian.Uint64(b[32:])
	n := uint64(binary.LittleEndian.Uint32(b[40:]))
	if k.access&^transport.AccessAll != 0 || b[7] != 0 || binary.LittleEndian.Uint32(b[44:]) != 0 || k.size == 0 || k.base+k.size < k.base ||
		k.piece == 0 || n != (k.size-1)/k.piece+1 || n > maxPieces || uint64(end) != keyHeader+4*n {
		return k, fmt.Errorf("%w: verbs key of %d bytes with access %#x, %d bytes at %#x in %d pieces of %d",
			transport.ErrBadKey, len(b), k.access, k.size, k.base, n, k.piece)
	}
	k.rkeys = make([]uint32, n)
	for i := range k.rkeys {
		k.rkeys[i] = binary.LittleEndian.Uint32(b[keyHeader+4*i:])
	}
	return k, nil
}
