package shm

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"os"

	"moerail/transport"
)

// identity is what a domain's address says.
//
//	offset 0 magic, 4 version, 6 zero, 8 generation, 16 host, 24 pid,
//	28 zero, 32 socket token, 48 secret; 64 bytes, little endian
type identity struct {
	generation uint64   // never 0; differs in every life
	host       uint64   // hash of the boot id, 0 where unknown
	pid        uint32   // for error texts only
	token      [16]byte // names the socket; visible to everyone on the host
	secret     [16]byte // shown by who connects; travels in the address only
}

const (
	addressMagic = 0x6d527368 // "mRsh"
	addressBytes = 64
	keyMagic     = 0x6d526b79 // "mRky"
	keyBytes     = 40
)

func newIdentity() (identity, error) {
	var b [40]byte
	if _, err := rand.Read(b[:]); err != nil {
		return identity{}, fmt.Errorf("shm: random numbers: %w", err)
	}
	id := identity{generation: binary.LittleEndian.Uint64(b[:]) | 1, host: bootHash(), pid: uint32(os.Getpid())}
	copy(id.token[:], b[8:])
	copy(id.secret[:], b[24:])
	return id, nil
}

// bootHash tells hosts, and lives of one host, apart.
func bootHash() uint64 {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return 0
	}
	h := fnv.New64a()
	h.Write(b)
	return h.Sum64()
}

// socketName is in the abstract namespace: it vanishes with its process.
func (id *identity) socketName() string {
	return "@moerail-shm-" + hex.EncodeToString(id.token[:])
}

func (id *identity) encode() transport.Address {
	b := make([]byte, addressBytes)
	binary.LittleEndian.PutUint32(b, addressMagic)
	binary.LittleEndian.PutUint16(b[4:], layoutVersion)
	binary.LittleEndian.PutUint64(b[8:], id.generation)
	binary.LittleEndian.PutUint64(b[16:], id.host)
	binary.LittleEndian.PutUint32(b[24:], id.pid)
	copy(b[32:], id.token[:])
	copy(b[48:], id.secret[:])
	return b
}

func decodeAddress(a transport.Address) (identity, error) {
	var id identity
	if len(a) != addressBytes {
		return id, fmt.Errorf("%w: shm address of %d bytes, want %d", transport.ErrBadAddress, len(a), addressBytes)
	}
	if m := binary.LittleEndian.Uint32(a); m != addressMagic {
		return id, fmt.Errorf("%w: not a shm address (starts %#x)", transport.ErrBadAddress, m)
	}
	if v := binary.LittleEndian.Uint16(a[4:]); v != layoutVersion {
		return id, fmt.Errorf("%w: shm version %d, this is version %d", transport.ErrBadAddress, v, layoutVersion)
	}
	id.generation = binary.LittleEndian.Uint64(a[8:])
	id.host = binary.LittleEndian.Uint64(a[16:])
	id.pid = binary.LittleEndian.Uint32(a[24:])
	copy(id.token[:], a[32:])
	copy(id.secret[:], a[48:])
	if id.generation == 0 || binary.LittleEndian.Uint16(a[6:]) != 0 || binary.LittleEndian.Uint32(a[28:]) != 0 {
		return id, fmt.Errorf("%w: shm address with generation %#x or reserved bytes in use", transport.ErrBadAddress, id.generation)
	}
	return id, nil
}

// regionKey is what a RemoteKey says.
//
//	offset 0 magic, 4 version, 6 access, 7 zero, 8 generation of the domain,
//	16 nonce, 24 size, 32 index, 36 zero; 40 bytes, little endian
type regionKey struct {
	generation uint64
	nonce      uint64 // never 0; the region table holds it while the region is open
	size       uint64
	index      uint32 // in the region table; below maxRegions
	access     transport.Access
}

func (k *regionKey) encode() transport.RemoteKey {
	b := make([]byte, keyBytes)
	binary.LittleEndian.PutUint32(b, keyMagic)
	binary.LittleEndian.PutUint16(b[4:], layoutVersion)
	b[6] = byte(k.access)
	binary.LittleEndian.PutUint64(b[8:], k.generation)
	binary.LittleEndian.PutUint64(b[16:], k.nonce)
	binary.LittleEndian.PutUint64(b[24:], k.size)
	binary.LittleEndian.PutUint32(b[32:], k.index)
	return b
}

func decodeKey(b transport.RemoteKey) (regionKey, error) {
	var k regionKey
	if len(b) != keyBytes {
		return k, fmt.Errorf("%w: shm key of %d bytes, want %d", transport.ErrBadKey, len(b), keyBytes)
	}
	if m, v := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint16(b[4:]); m != keyMagic || v != layoutVersion {
		return k, fmt.Errorf("%w: not a shm key of version %d (starts %#x, version %d)", transport.ErrBadKey, layoutVersion, m, v)
	}
	k.access = transport.Access(b[6])
	k.generation = binary.LittleEndian.Uint64(b[8:])
	k.nonce = binary.LittleEndian.Uint64(b[16:])
	k.size = binary.LittleEndian.Uint64(b[24:])
	k.index = binary.LittleEndian.Uint32(b[32:])
	if k.access&^transport.AccessAll != 0 || k.nonce == 0 || k.index >= maxRegions || k.size == 0 ||
		b[7] != 0 || binary.LittleEndian.Uint32(b[36:]) != 0 {
		return k, fmt.Errorf("%w: shm key with access %#x, nonce %#x, index %d (limit %d), %d bytes",
			transport.ErrBadKey, k.access, k.nonce, k.index, maxRegions, k.size)
	}
	return k, nil
}
