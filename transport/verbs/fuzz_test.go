package verbs

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"moerail/transport"
)

func someIdentity() identity {
	return identity{generation: 7, gid: [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 1}, qpn: 17, qkey: 99, pid: 4, ethernet: true, mtu: 5, reads: 16}
}

func someKey() regionKey {
	return regionKey{generation: 7, base: 1 << 40, size: 5<<20 + 1, piece: 1 << 20, access: transport.AccessAll, rkeys: []uint32{1, 2, 3, 4, 5, 6}}
}

func someHello() []byte {
	id := someIdentity()
	h := hello{kind: kindHello, answer: true, to: 3, chans: [numChans]record{{1, 2, 3, 4}, {5, 6, 7, 8}}}
	b := make([]byte, helloBytes)
	h.put(b, id.encode())
	return b
}

// resealed makes the checksum of altered bytes right again, so that a fuzzer
// gets past it.
func resealed(b []byte) []byte {
	if len(b) < 8 {
		return b
	}
	b = slices.Clone(b)
	sum := checksum(b[:len(b)-8])
	for i := range 8 {
		b[len(b)-8+i] = byte(sum >> (8 * i))
	}
	return b
}

// What decodes must encode to the same bytes: nothing is ignored.
func FuzzDecodeAddress(f *testing.F) {
	id := someIdentity()
	f.Add([]byte(id.encode()))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, resealed(b)} {
			if id, err := decodeAddress(b); err == nil && !bytes.Equal(id.encode(), b) {
				t.Errorf("%x decodes to %+v, which encodes to %x", b, id, id.encode())
			} else if err != nil && !errors.Is(err, transport.ErrBadAddress) {
				t.Errorf("%x: %v, want ErrBadAddress", b, err)
			}
		}
	})
}

func FuzzDecodeKey(f *testing.F) {
	k := someKey()
	f.Add([]byte(k.encode()))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, resealed(b)} {
			k, err := decodeKey(b)
			if err != nil {
				if !errors.Is(err, transport.ErrBadKey) {
					t.Errorf("%x: %v, want ErrBadKey", b, err)
				}
				continue
			}
			if !bytes.Equal(k.encode(), b) {
				t.Errorf("%x decodes to %+v, which encodes to %x", b, k, k.encode())
			}
			if last := (k.size - 1) / k.piece; last >= uint64(len(k.rkeys)) {
				t.Errorf("%x: the last byte is in piece %d of %d", b, last, len(k.rkeys))
			}
		}
	})
}

func FuzzDecodeHello(f *testing.F) {
	f.Add(someHello())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decodeHello(b)
		if err != nil {
			return
		}
		again := make([]byte, helloBytes)
		h.put(again, h.from.encode())
		if !bytes.Equal(again, b) {
			t.Errorf("%x decodes to %+v, which encodes to %x", b, h, again)
		}
	})
}

// Every byte of an address and a key counts.
func TestAlteredBytesAreRefused(t *testing.T) {
	id, k := someIdentity(), someKey()
	for i := range id.encode() {
		b := id.encode()
		b[i] ^= 1 << rand.IntN(8)
		if _, err := decodeAddress(b); !errors.Is(err, transport.ErrBadAddress) {
			t.Errorf("address with byte %d altered: %v", i, err)
		}
	}
	for i := range k.encode() {
		b := k.encode()
		b[i] ^= 1 << rand.IntN(8)
		if _, err := decodeKey(b); !errors.Is(err, transport.ErrBadKey) {
			t.Errorf("key with byte %d altered: %v", i, err)
		}
	}
}

func TestDecodersRefuse(t *testing.T) {
	for name, change := range map[string]func(*identity){
		"no generation": func(id *identity) { id.generation = 0 },
		"MTU code 0":    func(id *identity) { id.mtu = 0 },
		"MTU code 6":    func(id *identity) { id.mtu = 6 },
		"queue pair":    func(id *identity) { id.qpn = 1 << 24 },
		"queue key":     func(id *identity) { id.qkey = 1 << 31 },
		"no GID":        func(id *identity) { id.gid = [16]byte{} },
	} {
		id := someIdentity()
		change(&id)
		if _, err := decodeAddress(id.encode()); !errors.Is(err, transport.ErrBadAddress) {
			t.Errorf("%s: %v, want ErrBadAddress", name, err)
		}
	}
	for name, change := range map[string]func(*regionKey){
		"access":         func(k *regionKey) { k.access = 8 },
		"size 0":         func(k *regionKey) { k.size = 0 },
		"piece 0":        func(k *regionKey) { k.piece = 0 },
		"a key too few":  func(k *regionKey) { k.rkeys = k.rkeys[:5] },
		"a key too many": func(k *regionKey) { k.rkeys = append(k.rkeys, 7) },
		"wraps":          func(k *regionKey) { k.base = ^uint64(0) - 5 },
	} {
		k := someKey()
		change(&k)
		if _, err := decodeKey(k.encode()); !errors.Is(err, transport.ErrBadKey) {
			t.Errorf("%s: %v, want ErrBadKey", name, err)
		}
	}
	for name, at := range map[string][2]int{"magic": {0, 1}, "version": {4, 9}, "kind 0": {6, 0}, "kind": {6, 4}, "flags": {7, 2}, "address": {20, 9}, "queue pair": {83, 1}, "PSN": {87, 1}} {
		b := someHello()
		b[at[0]] = byte(at[1])
		if _, err := decodeHello(b); !errors.Is(err, errHello) {
			t.Errorf("hello with bad %s: %v", name, err)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	bad := Config{GIDIndex: -2, MTU: 1500, SendDepth: 1, ImmDepth: -1, AckTimeout: 32, Retries: 8, HandshakeTimeout: -1, ServiceLevel: 16, PKeyIndex: -1, MaxRegion: 5}
	_, err := bad.withDefaults()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, field := range []string{"GIDIndex", "MTU", "SendDepth", "ImmDepth", "AckTimeout", "Retries", "HandshakeTimeout", "ServiceLevel", "PKeyIndex", "MaxRegion"} {
		if !bytes.Contains([]byte(err.Error()), []byte(field)) {
			t.Errorf("the error does not tell of %s: %v", field, err)
		}
	}
	if _, err := DefaultConfig().withDefaults(); err != nil {
		t.Error(err)
	}
}

func TestNotBuilt(t *testing.T) {
	if Built {
		t.Skip("libibverbs support is in this build")
	}
	if _, err := New(DefaultConfig()); !errors.Is(err, ErrNotBuilt) {
		t.Errorf("New: %v", err)
	}
	if d := Discover(); !errors.Is(d.Err, ErrNotBuilt) || d.Remedy == "" {
		t.Errorf("Discover: %+v", d)
	}
}
