package peergroup

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
)

// A rank joins in two round trips:
//
//	rank k                                     rank 0
//	Hello{rank, size, instance, nonce_k}  -->
//	                                      <--  Challenge{nonce_0}
//	Proof{MAC("rank k", all of it)}       -->
//	                                      <--  Welcome{MAC("rank 0", all of it)} or Refuse
//
// The MAC is HMAC-SHA256 under the secret over a label of the side, the version
// and every field of the exchange. Both nonces are fresh, so neither side's
// proof can be used again; the labels keep one side's proof from serving as the
// other's. Rank 0 proves itself only to who has proved himself, and says why it
// refuses only then, save for "the secrets differ".

const (
	instanceBytes = 16
	nonceBytes    = 32
	macBytes      = sha256.Size
	helloBytes    = 4 + 4 + instanceBytes + nonceBytes
)

const (
	labelMember = "moerail peergroup rank k"
	labelHub    = "moerail peergroup rank 0"
)

// hello is a rank's request to join.
type hello struct {
	rank, size uint32
	// instance is drawn once per JoinTCP: a rank that lost its first connection
	// on the way is not taken for a second rank of the same number.
	instance [instanceBytes]byte
	nonce    [nonceBytes]byte
}

func (h *hello) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, h.rank)
	b = binary.LittleEndian.AppendUint32(b, h.size)
	b = append(b, h.instance[:]...)
	return append(b, h.nonce[:]...)
}

func decodeHello(body []byte) (hello, error) {
	d := decoder{b: body}
	h := hello{rank: d.u32(), size: d.u32()}
	copy(h.instance[:], d.bytes(instanceBytes))
	copy(h.nonce[:], d.bytes(nonceBytes))
	return h, d.done()
}

// proof is the MAC by which the side named by label shows that it has secret.
func (h *hello) proof(secret []byte, label string, nonce []byte) []byte {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(label))
	m.Write([]byte{0, frameVersion})
	m.Write(h.append(nil))
	m.Write(nonce)
	return m.Sum(nil)
}

// refuseCode is why rank 0 turns somebody away. Only numbers travel; the text is
// the receiver's own.
type refuseCode uint16

const (
	refuseSecret  refuseCode = 1 + iota
	refuseTaken              // argument: the rank
	refuseRange              // argument: the size of the group
	refuseSize               // argument: the size of the group
	refuseLate               // argument: the rank
	refuseVersion            // argument: the version of rank 0
)

func encodeRefuse(code refuseCode, arg uint32) []byte {
	b := newFrame(kindRefuse, 6, 6)
	b = binary.LittleEndian.AppendUint16(b, uint16(code))
	return binary.LittleEndian.AppendUint32(b, arg)
}

func decodeRefuse(body []byte) (refuseCode, uint32, error) {
	d := decoder{b: body}
	code, arg := refuseCode(d.u16()), d.u32()
	return code, arg, d.done()
}

// refusal is the error that rank reports for a refusal.
func refusal(addr string, rank, size int, code refuseCode, arg uint32) *RefusedError {
	e := &RefusedError{Addr: addr, Rank: rank}
	switch code {
	case refuseSecret:
		e.Detail, e.cause = ErrSecret.Error(), ErrSecret
	case refuseTaken:
		e.Detail = fmt.Sprintf("rank %d has joined already", rank)
	case refuseRange:
		e.Detail = fmt.Sprintf("rank %d is outside 0 to %d", rank, int64(arg)-1)
	case refuseSize:
		e.Detail = fmt.Sprintf("rank %d has world size %d, rank 0 has %d", rank, size, arg)
	case refuseLate:
		e.Detail = "the group has lost a rank and takes nobody any more"
	case refuseVersion:
		e.Detail = fmt.Sprintf("it speaks version %d, this rank version %d", arg, frameVersion)
	default:
		e.Detail = fmt.Sprintf("unknown reason %d", code)
	}
	return e
}

// askToJoin is rank k's side. A *RefusedError is final, any other error may pass.
func askToJoin(rw io.ReadWriter, cfg *TCPConfig, instance [instanceBytes]byte) error {
	h := hello{rank: uint32(cfg.Rank), size: uint32(cfg.Size), instance: instance}
	rand.Read(h.nonce[:])
	if _, err := rw.Write(h.append(newFrame(kindHello, helloBytes, helloBytes))); err != nil {
		return err
	}
	nonce, err := readAnswer(rw, cfg, kindChallenge, nonceBytes)
	if err != nil {
		return err
	}
	proof := append(newFrame(kindProof, macBytes, macBytes), h.proof(cfg.Secret, labelMember, nonce)...)
	if _, err := rw.Write(proof); err != nil {
		return err
	}
	mac, err := readAnswer(rw, cfg, kindWelcome, macBytes)
	if err != nil {
		return err
	}
	if !hmac.Equal(mac, h.proof(cfg.Secret, labelHub, nonce)) {
		return &RefusedError{Addr: cfg.Addr, Rank: cfg.Rank, cause: ErrSecret,
			Detail: "the process there does not have the secret"}
	}
	return nil
}

// readAnswer reads a frame of the wanted kind and size, or a refusal.
func readAnswer(r io.Reader, cfg *TCPConfig, want frameKind, size int) ([]byte, error) {
	kind, body, err := readFrame(r, maxHandshakeBody)
	if err != nil {
		return nil, err
	}
	if kind == kindRefuse {
		code, arg, err := decodeRefuse(body)
		if err != nil {
			return nil, err
		}
		return nil, refusal(cfg.Addr, cfg.Rank, cfg.Size, code, arg)
	}
	if kind != want || len(body) != size {
		return nil, fmt.Errorf("frame of kind %d with %d bytes while joining, want kind %d with %d", kind, len(body), want, size)
	}
	return body, nil
}

// admit is rank 0's side up to the proof. It returns what the newcomer said and
// the frame that will welcome him; a refusal has been sent when it fails.
func admit(rw io.ReadWriter, size int, secret []byte) (hello, []byte, error) {
	kind, body, err := readFrame(rw, maxHandshakeBody)
	if err != nil {
		if v := (*versionError)(nil); asVersion(err, &v) {
			rw.Write(encodeRefuse(refuseVersion, frameVersion))
		}
		return hello{}, nil, err
	}
	if kind != kindHello {
		return hello{}, nil, fmt.Errorf("first frame is of kind %d", kind)
	}
	h, err := decodeHello(body)
	if err != nil {
		return hello{}, nil, err
	}
	var nonce [nonceBytes]byte
	rand.Read(nonce[:])
	if _, err := rw.Write(append(newFrame(kindChallenge, nonceBytes, nonceBytes), nonce[:]...)); err != nil {
		return hello{}, nil, err
	}
	kind, body, err = readFrame(rw, maxHandshakeBody)
	if err != nil {
		return hello{}, nil, err
	}
	if kind != kindProof || !hmac.Equal(body, h.proof(secret, labelMember, nonce[:])) {
		rw.Write(encodeRefuse(refuseSecret, 0))
		return hello{}, nil, ErrSecret
	}
	// From here on the other side has the secret, and may be told more.
	switch {
	case h.size != uint32(size):
		rw.Write(encodeRefuse(refuseSize, uint32(size)))
		return hello{}, nil, fmt.Errorf("rank %d has world size %d, this job %d", h.rank, h.size, size)
	case h.rank >= uint32(size):
		rw.Write(encodeRefuse(refuseRange, uint32(size)))
		return hello{}, nil, fmt.Errorf("rank %d is outside 0 to %d", h.rank, size-1)
	}
	welcome := append(newFrame(kindWelcome, macBytes, macBytes), h.proof(secret, labelHub, nonce[:])...)
	return h, welcome, nil
}

func asVersion(err error, v **versionError) bool {
	e, ok := err.(*versionError)
	if ok {
		*v = e
	}
	return ok
}
