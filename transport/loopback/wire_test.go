package loopback

import (
	"bytes"
	"testing"
)

func FuzzDecodeAddress(f *testing.F) {
	f.Add([]byte(location{1, 2, 3}.address()))
	f.Add([]byte{})
	f.Add([]byte(addressMagic))
	f.Fuzz(func(t *testing.T, a []byte) {
		if l, err := decodeAddress(a); err == nil && !bytes.Equal(l.address(), a) {
			t.Errorf("%x decodes to %+v, which encodes otherwise", a, l)
		}
	})
}

func FuzzDecodeKey(f *testing.F) {
	for _, k := range []regionKey{
		{location: location{1, 2, 3}, region: 4, size: 5, piece: 5, device: []uint64{6}},
		{location: location{1, 2, 3}, region: 4, size: 9, piece: 4, device: []uint64{6, 7, 8}},
		{location: location{1, 2, 3}, region: 4, size: ^uint64(0), piece: ^uint64(0), device: []uint64{6}},
	} {
		f.Add([]byte(k.encode()))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := decodeKey(b)
		if err != nil {
			return
		}
		if !bytes.Equal(k.encode(), b) {
			t.Errorf("%x decodes to %+v, which encodes otherwise", b, k)
		}
		if uint64(len(k.device)) != pieces(k.size, k.piece) {
			t.Errorf("%d device keys for %d bytes in pieces of %d", len(k.device), k.size, k.piece)
		}
	})
}
