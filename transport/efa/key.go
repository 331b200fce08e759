//go:build libfabric && cgo

package efa

import (
	"encoding/binary"
	"fmt"

	"moerail/transport"
)

// regionKey is what a RemoteKey says.
//
//	 0 magic 4, version 2, access 1, zero 1
//	 8 generation 8 of the domain, 16 size 8, 24 bytes of a piece 8
//	32 base address 8: 0 where the provider counts from the start of each key
//	40 one key of 8 bytes for each piece, then a sum 8 of all before; little endian
type regionKey struct {
	access     transport.Access
	generation uint64
	size       uint64
	piece      uint64 // all pieces but the last have this size
	base       uint64
	keys       []uint64
}

const (
	keyMagic   = 0x6d526c6b // "mRlk"
	keyVersion = 1
	keyHead    = 40
	maxPieces  = (transport.MaxKeyBytes - keyHead - sumBytes) / 8
)

func pieces(size, piece uint64) uint64 {
	n := size / piece
	if size%piece != 0 {
		n++
	}
	return n
}

func (k *regionKey) encode() transport.RemoteKey {
	le := binary.LittleEndian
	b := make([]byte, keyHead, keyHead+len(k.keys)*8+sumBytes)
	le.PutUint32(b, keyMagic)
	le.PutUint16(b[4:], keyVersion)
	b[6] = byte(k.access)
	le.PutUint64(b[8:], k.generation)
	le.PutUint64(b[16:], k.size)
	le.PutUint64(b[24:], k.piece)
	le.PutUint64(b[32:], k.base)
	for _, key := range k.keys {
		b = le.AppendUint64(b, key)
	}
	return le.AppendUint64(b, sum(b))
}

func decodeKey(b transport.RemoteKey) (regionKey, error) {
	bad := func(format string, args ...any) (regionKey, error) {
		return regionKey{}, fmt.Errorf("%w: "+format, append([]any{transport.ErrBadKey}, args...)...)
	}
	le := binary.LittleEndian
	if len(b) < keyHead+8+sumBytes || len(b) > transport.MaxKeyBytes || len(b)%8 != 0 {
		return bad("libfabric key of %d bytes, want a multiple of 8 from %d to %d", len(b), keyHead+8+sumBytes, transport.MaxKeyBytes)
	}
	if m, v := le.Uint32(b), le.Uint16(b[4:]); m != keyMagic || v != keyVersion {
		return bad("not a libfabric key of version %d (starts %#x, version %d)", keyVersion, m, v)
	}
	body := b[:len(b)-sumBytes]
	if le.Uint64(b[len(body):]) != sum(body) {
		return bad("libfabric key whose sum is wrong: it was altered on its way")
	}
	k := regionKey{
		access: transport.Access(b[6]), generation: le.Uint64(b[8:]), size: le.Uint64(b[16:]), piece: le.Uint64(b[24:]), base: le.Uint64(b[32:]),
	}
	n := uint64(len(body)-keyHead) / 8
	if k.access&^transport.AccessAll != 0 || b[7] != 0 || k.size == 0 || k.piece == 0 || pieces(k.size, k.piece) != n || k.base+k.size < k.base {
		return bad("libfabric key with access %#x, %d bytes at %#x in %d pieces of %d", k.access, k.size, k.base, n, k.piece)
	}
	k.keys = make([]uint64, n)
	for i := range k.keys {
		k.keys[i] = le.Uint64(b[keyHead+i*8:])
	}
	return k, nil
}
