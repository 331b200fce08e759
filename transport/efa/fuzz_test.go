//go:build libfabric && cgo

package efa

import (
	"bytes"
	"testing"

	"moerail/transport"
)

func someIdentity() identity {
	return identity{
		flags: flagTagged, immBytes: 8, generation: 0x1122334455667788, protocol: 11, format: 2, homeKey: 3, homeAddr: 4,
		endpoint: []byte{2, 0, 1, 2, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}, provider: "tcp;ofi_rxm",
	}
}

// What decodes encodes to the same bytes: no two addresses mean the same.
func FuzzAddress(f *testing.F) {
	id := someIdentity()
	good := id.encode()
	f.Add([]byte(good))
	f.Add([]byte(good[:len(good)-1]))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, a := range [][]byte{b, resum(b)} {
			id, err := decodeAddress(a)
			if err != nil {
				continue
			}
			if back := id.encode(); !bytes.Equal(back, a) {
				t.Errorf("%x decodes to %+v, which is %x", a, id, back)
			}
		}
	})
}

func FuzzKey(f *testing.F) {
	for _, k := range []regionKey{
		{access: transport.AccessAll, generation: 1, size: 4096, piece: noPiece, keys: []uint64{7}},
		{access: transport.AccessLocal, generation: 1, size: 10000, piece: 4096, base: 1 << 40, keys: []uint64{7, 8, 9}},
	} {
		f.Add([]byte(k.encode()))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, a := range [][]byte{b, resum(b)} {
			k, err := decodeKey(a)
			if err != nil {
				continue
			}
			if back := k.encode(); !bytes.Equal(back, a) {
				t.Errorf("%x decodes to %+v, which is %x", a, k, back)
			}
			r := remote{key: k}
			for _, off := range []uint64{0, k.size - 1, k.size / 2} { // finds a key for every byte
				r.at(off)
				r.seam(off, k.size-off)
			}
		}
	})
}

// resum gives b a right sum, so that what lies behind the sum is tried too.
func resum(b []byte) []byte {
	if len(b) < sumBytes {
		return b
	}
	b = bytes.Clone(b)
	body := b[:len(b)-sumBytes]
	for i, v := 0, sum(body); i < sumBytes; i++ {
		b[len(body)+i] = byte(v >> (8 * i))
	}
	return b
}
