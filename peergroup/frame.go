package peergroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A frame is a header and a body, integers little endian:
//
//	0  magic    "MRPG"
//	4  version  1
//	5  kind
//	6  zero     2 bytes
//	8  length   of the body, 4 bytes
//
// A reader bounds the length by what may come at this point of the conversation
// before it allocates anything.
const (
	frameMagic   = "MRPG"
	frameVersion = 1
	headerBytes  = 12
)

type frameKind uint8

const (
	kindHello      frameKind = 1 + iota // to rank 0: rank, size, instance, nonce
	kindChallenge                       // to rank k: nonce
	kindProof                           // to rank 0: MAC
	kindWelcome                         // to rank k: MAC
	kindRefuse                          // to rank k: code, argument
	kindContribute                      // to rank 0: call id, key, blob
	kindWithdraw                        // to rank 0: call id
	kindLeave                           // to rank 0: nothing
	kindBlob                            // to rank k: call id, rank, blob
	kindFailed                          // to rank k: call id, who is missing
	kindLost                            // to rank k: rank, reason
	// 12 and above are kept for liveness and masks.
)

// maxHandshakeBody bounds what a stranger can make rank 0 allocate.
const maxHandshakeBody = 128

// maxBody bounds the frames of ranks that have joined.
const maxBody = 16 + MaxKeyBytes + MaxBlobBytes

var (
	errMagic  = errors.New("not a frame of a peergroup")
	errShort  = errors.New("frame body is too short")
	errExcess = errors.New("frame body is too long")
)

// versionError is a frame of another version; it has been read no further.
type versionError struct{ version uint8 }

func (e *versionError) Error() string {
	return fmt.Sprintf("frame version %d, this is version %d", e.version, frameVersion)
}

// newFrame returns a header for body bytes after it, with room for prefix of
// them.
func newFrame(kind frameKind, prefix, body int) []byte {
	b := make([]byte, headerBytes, headerBytes+prefix)
	copy(b, frameMagic)
	b[4], b[5] = frameVersion, byte(kind)
	binary.LittleEndian.PutUint32(b[8:], uint32(body))
	return b
}

// readFrame reads one frame whose body may have up to limit bytes. The body is
// the caller's.
func readFrame(r io.Reader, limit int) (frameKind, []byte, error) {
	var h [headerBytes]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	switch {
	case string(h[:4]) != frameMagic:
		return 0, nil, errMagic
	case h[4] != frameVersion:
		return 0, nil, &versionError{h[4]}
	case h[6] != 0 || h[7] != 0:
		return 0, nil, errMagic
	}
	n := binary.LittleEndian.Uint32(h[8:])
	if uint64(n) > uint64(limit) {
		return 0, nil, fmt.Errorf("frame of kind %d announces %d bytes, allowed are %d", h[5], n, limit)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return frameKind(h[5]), body, nil
}

// encodeContribute returns the frame in two parts, so that the blob is not
// copied.
func encodeContribute(id uint32, key string, blob []byte) [][]byte {
	n := 4 + 2 + len(key)
	b := newFrame(kindContribute, n, n+len(blob))
	b = binary.LittleEndian.AppendUint32(b, id)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(key)))
	b = append(b, key...)
	return [][]byte{b, blob}
}

func decodeContribute(body []byte) (id uint32, key string, blob []byte, err error) {
	d := decoder{b: body}
	id = d.u32()
	key = string(d.bytes(int(d.u16())))
	blob = d.b
	switch {
	case d.err != nil:
		return 0, "", nil, d.err
	case len(key) == 0 || len(key) > MaxKeyBytes:
		return 0, "", nil, fmt.Errorf("key of %d bytes, allowed are 1 to %d", len(key), MaxKeyBytes)
	case len(blob) > MaxBlobBytes:
		return 0, "", nil, fmt.Errorf("blob of %d bytes, allowed are %d", len(blob), MaxBlobBytes)
	}
	return id, key, blob, nil
}

func encodeWithdraw(id uint32) [][]byte {
	return [][]byte{binary.LittleEndian.AppendUint32(newFrame(kindWithdraw, 4, 4), id)}
}

func decodeWithdraw(body []byte) (id uint32, err error) {
	d := decoder{b: body}
	id = d.u32()
	return id, d.done()
}

func encodeLeave() [][]byte { return [][]byte{newFrame(kindLeave, 0, 0)} }

func encodeBlob(id uint32, rank int, blob []byte) [][]byte {
	b := newFrame(kindBlob, 8, 8+len(blob))
	b = binary.LittleEndian.AppendUint32(b, id)
	b = binary.LittleEndian.AppendUint32(b, uint32(rank))
	return [][]byte{b, blob}
}

func decodeBlob(body []byte, size int) (id uint32, rank int, blob []byte, err error) {
	d := decoder{b: body}
	id = d.u32()
	rank = d.rank(size)
	if d.err == nil && len(d.b) > MaxBlobBytes {
		d.err = errExcess
	}
	return id, rank, d.b, d.err
}

func encodeFailed(id uint32, a absence) [][]byte {
	b := newFrame(kindFailed, 64, 0)
	b = binary.LittleEndian.AppendUint32(b, id)
	b = appendRanks(b, a.missing)
	b = appendRanks(b, a.gaveUp)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(a.waiting)))
	for _, w := range a.waiting {
		b = binary.LittleEndian.AppendUint32(b, uint32(w.Rank))
		b = binary.LittleEndian.AppendUint16(b, uint16(len(w.Keys)))
		for _, k := range w.Keys {
			b = binary.LittleEndian.AppendUint16(b, uint16(len(k)))
			b = append(b, k...)
		}
	}
	binary.LittleEndian.PutUint32(b[8:], uint32(len(b)-headerBytes))
	return [][]byte{b}
}

func appendRanks(b []byte, ranks []int) []byte {
	b = binary.LittleEndian.AppendUint16(b, uint16(len(ranks)))
	for _, r := range ranks {
		b = binary.LittleEndian.AppendUint32(b, uint32(r))
	}
	return b
}

func decodeFailed(body []byte, size int) (id uint32, a absence, err error) {
	d := decoder{b: body}
	id = d.u32()
	a.missing = d.ranks(size)
	a.gaveUp = d.ranks(size)
	n := int(d.u16())
	if n > maxWaitingRanks {
		return 0, absence{}, fmt.Errorf("%d waiting ranks, allowed are %d", n, maxWaitingRanks)
	}
	for range n {
		w := WaitingRank{Rank: d.rank(size)}
		keys := int(d.u16())
		if keys > maxWaitingKeys {
			return 0, absence{}, fmt.Errorf("%d keys of a waiting rank, allowed are %d", keys, maxWaitingKeys)
		}
		for range keys {
			k := d.bytes(int(d.u16()))
			if len(k) > MaxKeyBytes {
				return 0, absence{}, fmt.Errorf("key of %d bytes, allowed are %d", len(k), MaxKeyBytes)
			}
			w.Keys = append(w.Keys, string(k))
		}
		a.waiting = append(a.waiting, w)
	}
	if err := d.done(); err != nil {
		return 0, absence{}, err
	}
	return id, a, nil
}

func encodeLost(e LostError) [][]byte {
	b := newFrame(kindLost, 5, 5)
	b = binary.LittleEndian.AppendUint32(b, uint32(e.Rank))
	return [][]byte{append(b, byte(e.Reason))}
}

func decodeLost(body []byte, size int) (LostError, error) {
	d := decoder{b: body}
	e := LostError{Rank: d.rank(size), Reason: LossReason(d.u8())}
	if d.err == nil && (e.Reason < LossConnection || e.Reason > LossProtocol) {
		d.err = fmt.Errorf("loss reason %d", e.Reason)
	}
	return e, d.done()
}

// decoder takes a body apart. After the first failure every read gives zero and
// err stays.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) bytes(n int) []byte {
	if d.err != nil || n > len(d.b) {
		if d.err == nil {
			d.err = errShort
		}
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) u8() uint8 {
	if v := d.bytes(1); v != nil {
		return v[0]
	}
	return 0
}

func (d *decoder) u16() uint16 {
	if v := d.bytes(2); v != nil {
		return binary.LittleEndian.Uint16(v)
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if v := d.bytes(4); v != nil {
		return binary.LittleEndian.Uint32(v)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if v := d.bytes(8); v != nil {
		return binary.LittleEndian.Uint64(v)
	}
	return 0
}

// rank reads a rank of a group of size.
func (d *decoder) rank(size int) int {
	v := d.u32()
	if d.err == nil && uint64(v) >= uint64(size) {
		d.err = fmt.Errorf("rank %d, allowed are 0 to %d", v, size-1)
	}
	if d.err != nil {
		return 0
	}
	return int(v)
}

// ranks reads a list of at most size ranks.
func (d *decoder) ranks(size int) []int {
	n := int(d.u16())
	if d.err == nil && n > size {
		d.err = fmt.Errorf("list of %d ranks of %d", n, size)
	}
	if d.err != nil || n*4 > len(d.b) {
		if d.err == nil {
			d.err = errShort
		}
		return nil
	}
	if n == 0 {
		return nil
	}
	list := make([]int, n)
	for i := range list {
		list[i] = d.rank(size)
	}
	return list
}

// done fails if anything is left over.
func (d *decoder) done() error {
	if d.err == nil && len(d.b) > 0 {
		d.err = errExcess
	}
	return d.err
}
