package engine

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"moerail/transport"
)

func sampleDescriptor(n int) Descriptor {
	d := Descriptor{Size: 1 << 40}
	for i := 0; i < n; i++ {
		d.NICs = append(d.NICs, NICKey{Addr: bytes.Repeat([]byte{byte(i + 1)}, 1+i*100), Key: bytes.Repeat([]byte{9}, i*1000)})
	}
	return d
}

func TestDescriptorsAndAddressesSurviveTheWire(t *testing.T) {
	for n := 1; n <= MaxNICs; n++ {
		d := sampleDescriptor(n)
		b, err := d.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseDescriptor(b)
		if err != nil || !equalDescriptors(got, d) {
			t.Fatalf("%d NICs: %v", n, err)
		}
		for cut := range b {
			if _, err := ParseDescriptor(b[:cut]); !errors.Is(err, ErrMalformed) && !(cut == headBytes && n == 0) {
				t.Fatalf("%d NICs cut to %d of %d bytes: %v", n, cut, len(b), err)
			}
		}
		if _, err := ParseDescriptor(append(b, 0)); !errors.Is(err, ErrMalformed) {
			t.Errorf("a byte too many: %v", err)
		}
		a := Address{Generation: 0xfeedface}
		for _, k := range d.NICs {
			a.NICs = append(a.NICs, k.Addr)
		}
		b, err = a.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParseAddress(b)
		if err != nil || !back.Equal(a) {
			t.Fatalf("address of %d NICs: %v", n, err)
		}
		back.Generation++
		if back.Equal(a) {
			t.Error("addresses of two lives are equal")
		}
		if _, err := ParseDescriptor(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("an address was taken for a descriptor: %v", err)
		}
	}
	b, err := Descriptor{}.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	if d, err := ParseDescriptor(b); err != nil || !d.IsZero() {
		t.Errorf("zero descriptor: %+v, %v", d, err)
	}
}

func equalDescriptors(a, b Descriptor) bool {
	if a.Size != b.Size || len(a.NICs) != len(b.NICs) {
		return false
	}
	for i := range a.NICs {
		if !bytes.Equal(a.NICs[i].Addr, b.NICs[i].Addr) || !bytes.Equal(a.NICs[i].Key, b.NICs[i].Key) {
			return false
		}
	}
	return true
}

func TestOversizedDescriptorsAreRefused(t *testing.T) {
	long := sampleDescriptor(1)
	long.NICs[0].Addr = make(transport.Address, transport.MaxAddressBytes+1)
	key := sampleDescriptor(1)
	key.NICs[0].Key = make(transport.RemoteKey, transport.MaxKeyBytes+1)
	none := sampleDescriptor(1)
	none.NICs[0].Addr = nil
	for i, d := range []Descriptor{long, key, none, sampleDescriptor(5), {Size: 5}, {NICs: sampleDescriptor(1).NICs}} {
		if _, err := d.MarshalBinary(); !errors.Is(err, ErrMalformed) {
			t.Errorf("descriptor %d: %v", i, err)
		}
	}
	// A length beyond the input must not be believed.
	b := []byte{descriptorKind, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 7, 0xff, 0xff, 0xff, 0xff}
	if _, err := ParseDescriptor(b); !errors.Is(err, ErrMalformed) {
		t.Errorf("key of 4 GiB: %v", err)
	}
}

func FuzzParseDescriptor(f *testing.F) {
	for n := 1; n <= MaxNICs; n++ {
		b, _ := sampleDescriptor(n).MarshalBinary()
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := ParseDescriptor(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) || !reflect.DeepEqual(d, Descriptor{}) {
				t.Fatalf("%+v, %v", d, err)
			}
			return
		}
		out, err := d.MarshalBinary()
		if err != nil || !bytes.Equal(out, b) {
			t.Fatalf("%x becomes %x, %v", b, out, err)
		}
	})
}

func FuzzParseAddress(f *testing.F) {
	b, _ := Address{Generation: 1, NICs: []transport.Address{{1, 2}, {3}}}.MarshalBinary()
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := ParseAddress(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatal(err)
			}
			return
		}
		out, err := a.MarshalBinary()
		if err != nil || !bytes.Equal(out, b) {
			t.Fatalf("%x becomes %x, %v", b, out, err)
		}
	})
}
