package shm

import (
	"bytes"
	"testing"

	"moerail/transport"
)

// What decodes must encode to the same bytes: nothing is ignored.
func FuzzDecodeAddress(f *testing.F) {
	id, err := newIdentity()
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(id.encode()))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if id, err := decodeAddress(b); err == nil && !bytes.Equal(id.encode(), b) {
			t.Errorf("%x decodes to %+v, which encodes to %x", b, id, id.encode())
		}
	})
}

func FuzzDecodeKey(f *testing.F) {
	k := regionKey{generation: 3, nonce: 5, size: 4096, index: 7, access: transport.AccessRemoteRead}
	f.Add([]byte(k.encode()))
	f.Fuzz(func(t *testing.T, b []byte) {
		if k, err := decodeKey(b); err == nil && !bytes.Equal(k.encode(), b) {
			t.Errorf("%x decodes to %+v, which encodes to %x", b, k, k.encode())
		}
	})
}

func FuzzDecodePackets(f *testing.F) {
	id, err := newIdentity()
	if err != nil {
		f.Fatal(err)
	}
	h := hello{generation: 1, guardOff: guardBytes, from: [addressBytes]byte(id.encode())}
	w, a, g := welcome{lane: 3}, ask{id: 1, nonce: 2, index: 3}, grant{id: 1, offset: 2, size: 3, access: 7}
	for _, b := range [][]byte{h.encode(), w.encode(), a.encode(), g.encode()} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var again []byte
		if h, err := decodeHello(b); err == nil {
			again = h.encode()
		} else if w, err := decodeWelcome(b); err == nil {
			again = w.encode()
		} else if a, err := decodeAsk(b); err == nil {
			again = a.encode()
		} else if g, err := decodeGrant(b); err == nil {
			again = g.encode()
		} else {
			return
		}
		if !bytes.Equal(again, b) {
			t.Errorf("%x encodes to %x", b, again)
		}
	})
}

func TestDecodersRefuse(t *testing.T) {
	id, _ := newIdentity()
	k := regionKey{generation: 3, nonce: 5, size: 4096, index: 7, access: transport.AccessRemoteRead}
	flip := func(b []byte, at int, to byte) []byte {
		b = append([]byte(nil), b...)
		b[at] = to
		return b
	}
	for name, b := range map[string][]byte{
		"short": id.encode()[:63], "long": append(id.encode(), 0), "magic": flip(id.encode(), 0, 1), "version": flip(id.encode(), 4, 9),
		"reserved": flip(id.encode(), 6, 1), "reserved 2": flip(id.encode(), 31, 1),
		"generation 0": append(append(id.encode()[:8:8], make([]byte, 8)...), id.encode()[16:]...),
	} {
		if _, err := decodeAddress(b); err == nil {
			t.Errorf("address %s: accepted", name)
		}
	}
	for name, b := range map[string][]byte{
		"magic": flip(k.encode(), 0, 1), "version": flip(k.encode(), 4, 9), "access": flip(k.encode(), 6, 8), "reserved": flip(k.encode(), 7, 1),
		"nonce 0": flip(k.encode(), 16, 0), "size 0": flip(k.encode(), 25, 0), "index": flip(k.encode(), 33, 16), "reserved 2": flip(k.encode(), 39, 1),
	} {
		if _, err := decodeKey(b); err == nil {
			t.Errorf("key %s: accepted", name)
		}
	}
}
