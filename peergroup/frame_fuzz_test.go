package peergroup

import (
	"bytes"
	"io"
	"reflect"
	"testing"
)

func joinParts(parts [][]byte) []byte { return bytes.Join(parts, nil) }

// FuzzFrame feeds a stream to the frame reader and every frame to every decoder.
// Nothing may panic, allocate beyond the limit, or accept what does not encode to
// the same bytes again.
func FuzzFrame(f *testing.F) {
	a := absence{missing: []int{1, 3}, gaveUp: []int{0}, waiting: []WaitingRank{{2, []string{"k", "l"}}}}
	for _, parts := range [][][]byte{
		encodeContribute(7, "key", []byte("blob")), encodeWithdraw(9), encodeLeave(),
		encodeBlob(1, 3, []byte("b")), encodeFailed(3, a), encodeLost(LostError{2, LossClosed}),
		{encodeRefuse(refuseSize, 4)},
	} {
		f.Add(joinParts(parts))
	}
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		const size, limit = 8, 1 << 12
		r := bytes.NewReader(stream)
		for {
			before := len(stream) - r.Len()
			kind, body, err := readFrame(r, limit)
			if err != nil {
				if err == io.EOF && before != len(stream) {
					t.Fatalf("EOF in the middle of a frame, at %d of %d", before, len(stream))
				}
				return
			}
			frame := stream[before : before+headerBytes+len(body)]
			var again []byte
			switch kind {
			case kindContribute:
				id, key, blob, e := decodeContribute(body)
				again, err = joinParts(encodeContribute(id, key, blob)), e
			case kindWithdraw:
				id, e := decodeWithdraw(body)
				again, err = joinParts(encodeWithdraw(id)), e
			case kindBlob:
				id, rank, blob, e := decodeBlob(body, size)
				again, err = joinParts(encodeBlob(id, rank, blob)), e
			case kindFailed:
				id, a, e := decodeFailed(body, size)
				again, err = joinParts(encodeFailed(id, a)), e
			case kindLost:
				l, e := decodeLost(body, size)
				again, err = joinParts(encodeLost(l)), e
			case kindRefuse:
				code, arg, e := decodeRefuse(body)
				again, err = encodeRefuse(code, arg), e
			default:
				continue
			}
			if err == nil && !bytes.Equal(again, frame) {
				t.Fatalf("kind %d: %x was accepted and encodes to %x", kind, frame, again)
			}
		}
	})
}

// FuzzHello lets a stranger say anything to rank 0: without the secret nobody is
// admitted.
func FuzzHello(f *testing.F) {
	h := hello{rank: 1, size: 4}
	first := h.append(newFrame(kindHello, helloBytes, helloBytes))
	f.Add(first)
	f.Add(append(bytes.Clone(first), append(newFrame(kindProof, macBytes, macBytes), make([]byte, macBytes)...)...))
	f.Fuzz(func(t *testing.T, said []byte) {
		if _, _, err := admit(rw{bytes.NewReader(said), io.Discard}, 4, testSecret); err == nil {
			t.Fatal("admitted")
		}
		if d, err := decodeHello(said); err == nil && !bytes.Equal(d.append(nil), said) {
			t.Fatal("a hello does not encode to itself")
		}
	})
}

// FuzzChallenge lets anything answer a rank that asks to join.
func FuzzChallenge(f *testing.F) {
	challenge := append(newFrame(kindChallenge, nonceBytes, nonceBytes), make([]byte, nonceBytes)...)
	f.Add(challenge)
	f.Add(append(challenge, encodeRefuse(refuseSize, 3)...))
	f.Add(append(bytes.Clone(challenge), append(newFrame(kindWelcome, macBytes, macBytes), make([]byte, macBytes)...)...))
	f.Fuzz(func(t *testing.T, said []byte) {
		cfg := TCPConfig{Rank: 1, Size: 4, Addr: "hub", Secret: testSecret}
		if err := askToJoin(rw{bytes.NewReader(said), io.Discard}, &cfg, [instanceBytes]byte{}); err == nil {
			t.Fatal("joined")
		}
	})
}

func FuzzParams(f *testing.F) {
	b, _ := encodeParams([]Param{{"hidden", "256"}, {"dtype", ""}})
	f.Add(b)
	f.Add([]byte{statusFault, 'x'})
	f.Fuzz(func(t *testing.T, blob []byte) {
		params, err := decodeParams(blob)
		if err != nil {
			return
		}
		again, err := encodeParams(params)
		if err != nil || !bytes.Equal(again, blob) {
			t.Fatalf("%x was accepted and encodes to %x, %v", blob, again, err)
		}
	})
}

func FuzzImms(f *testing.F) {
	f.Add(encodeImms(immSnapshot{next: 1000, live: []immRange{{256, 300}, {400, 1 << 32}}, freed: []immRange{{300, 301}}}, 7))
	f.Fuzz(func(t *testing.T, blob []byte) {
		s, n, err := decodeImms(blob)
		if err != nil {
			return
		}
		again := encodeImms(s, n)
		copy(again[1:], blob[1:1+immNonceBytes])
		if !bytes.Equal(again, blob) {
			t.Fatalf("%x was accepted and encodes to %x", blob, again)
		}
		first, ok := findImms([]immSnapshot{s}, uint64(n), uint64(len(blob)))
		if !ok {
			return
		}
		r := immRange{first, first + uint64(n)}
		if first < ReservedImms || r.end > immEnd {
			t.Fatalf("found %v", r)
		}
		for _, l := range s.live {
			if l.first < r.end && r.first < l.end {
				t.Fatalf("found %v, which meets %v", r, l)
			}
		}
	})
}

func TestFrameBoundedBeforeAllocation(t *testing.T) {
	h := newFrame(kindContribute, 0, maxBody+1)
	if n := testing.AllocsPerRun(10, func() {
		if _, _, err := readFrame(bytes.NewReader(h), maxBody); err == nil {
			t.Fatal("accepted")
		}
	}); n > 8 {
		t.Errorf("%v allocations", n)
	}
	for n := range headerBytes {
		if _, _, err := readFrame(bytes.NewReader(encodeLeave()[0][:n]), maxBody); err == nil {
			t.Errorf("%d bytes are a frame", n)
		}
	}
	full := joinParts(encodeContribute(1, "k", make([]byte, MaxBlobBytes)))
	kind, body, err := readFrame(bytes.NewReader(full), maxBody)
	if err != nil || kind != kindContribute {
		t.Fatal(err)
	}
	if id, key, blob, err := decodeContribute(body); err != nil || id != 1 || key != "k" || len(blob) != MaxBlobBytes {
		t.Error(id, key, len(blob), err)
	}
	if _, _, _, err := decodeContribute(append(body, 0)); err == nil {
		t.Error("a blob over the limit was accepted")
	}
	a := absence{missing: []int{1}, gaveUp: []int{0, 2}, waiting: []WaitingRank{{1, []string{"x"}}}}
	id, got, err := decodeFailed(joinParts(encodeFailed(5, a))[headerBytes:], 3)
	if err != nil || id != 5 || !reflect.DeepEqual(a, got) {
		t.Error(id, got, err)
	}
}
