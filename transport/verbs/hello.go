package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A link has two channels, each a queue pair at both ends.
const (
	chanMsg = iota // sends
	chanRMA        // writes, reads, atomics
	numChans
)

// hello is a datagram of the handshake.
//
//	offset 0 magic, 4 version, 6 kind, 7 flags, 8 generation of whom it is for,
//	16 address of whom it is from, 72 a record for each channel: epoch, seen,
//	queue pair, PSN; 104 bytes, little endian
type hello struct {
	kind   uint8
	answer bool // the sender waits for a hello
	to     uint64
	from   identity
	chans  [numChans]record
}

// record tells of one channel of the sender: which life its queue pair is in,
// and to which life of the receiver's it is connected.
type record struct {
	epoch uint32 // 0: there is no queue pair
	seen  uint32 // 0: not connected to any
	qpn   uint32
	psn   uint32
}

const (
	helloMagic = 0x6d527668 // "mRvh"
	helloBytes = 16 + addressBytes + numChans*16

	kindHello = 1 // here is my end of the link
	kindDrop  = 2 // I have given up my end; dial again if you need it
	kindBye   = 3 // I close
	maxKind   = kindBye
)

var errHello = errors.New("verbs: malformed handshake")

// put writes h into b, which has helloBytes.
func (h *hello) put(b []byte, from []byte) {
	binary.LittleEndian.PutUint32(b, helloMagic)
	binary.LittleEndian.PutUint16(b[4:], wireVersion)
	b[6], b[7] = h.kind, 0
	if h.answer {
		b[7] = 1
	}
	binary.LittleEndian.PutUint64(b[8:], h.to)
	copy(b[16:16+addressBytes], from)
	for i, r := range h.chans {
		at := b[16+addressBytes+16*i:]
		binary.LittleEndian.PutUint32(at, r.epoch)
		binary.LittleEndian.PutUint32(at[4:], r.seen)
		binary.LittleEndian.PutUint32(at[8:], r.qpn)
		binary.LittleEndian.PutUint32(at[12:], r.psn)
	}
}

func decodeHello(b []byte) (hello, error) {
	var h hello
	if len(b) != helloBytes {
		return h, fmt.Errorf("%w: %d bytes, want %d", errHello, len(b), helloBytes)
	}
	if m, v := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint16(b[4:]); m != helloMagic || v != wireVersion {
		return h, fmt.Errorf("%w: starts %#x, version %d, want version %d", errHello, m, v, wireVersion)
	}
	h.kind, h.answer = b[6], b[7] == 1
	if h.kind == 0 || h.kind > maxKind || b[7] > 1 {
		return h, fmt.Errorf("%w: kind %d, flags %#x", errHello, h.kind, b[7])
	}
	h.to = binary.LittleEndian.Uint64(b[8:])
	var err error
	if h.from, err = decodeAddress(b[16 : 16+addressBytes]); err != nil {
		return h, fmt.Errorf("%w: %w", errHello, err)
	}
	for i := range h.chans {
		at := b[16+addressBytes+16*i:]
		h.chans[i] = record{
			epoch: binary.LittleEndian.Uint32(at), seen: binary.LittleEndian.Uint32(at[4:]),
			qpn: binary.LittleEndian.Uint32(at[8:]), psn: binary.LittleEndian.Uint32(at[12:]),
		}
		if h.chans[i].qpn >= 1<<24 || h.chans[i].psn >= 1<<24 {
			return h, fmt.Errorf("%w: queue pair %#x, PSN %#x", errHello, h.chans[i].qpn, h.chans[i].psn)
		}
	}
	return h, nil
}

// course is where a channel's handshake stands. Each life of a queue pair has an
// epoch, which only grows; ends are connected life to life.
type course struct {
	epoch     uint32 // of our queue pair; 0 while there is none
	remote    uint32 // the peer's life that ours is connected to; 0 while it is to none
	last      uint32 // the newest life of the peer that any of ours was connected to
	confirmed bool   // the peer's end is connected to ours: it may be used
}

// move is what a record that was heard makes us do.
type move uint8

const (
	moveNone    move = iota // old news
	moveAnswer              // tell the peer again where we are
	moveConnect             // connect our queue pair to the one in the record, and tell
	moveRebuild             // the peer has begun anew: replace our queue pair, then hear the record again
)

// hear judges a record of the peer's and brings the course up to date, except
// that the caller connects and rebuilds.
//
// It connects to an end which is connected to our present life, or which is new
// and connected to nothing. An end that is connected to an earlier life of ours,
// or was when an earlier life of ours knew it, will learn of the present one and
// begin anew; to connect to it now would only break then.
func (c *course) hear(r record) move {
	switch {
	case r.epoch == 0 || c.epoch == 0:
		return moveNone
	case c.remote == 0 && r.seen != c.epoch && (r.seen != 0 || r.epoch <= c.last):
		return moveAnswer
	case c.remote == 0:
		c.remote, c.last, c.confirmed = r.epoch, r.epoch, r.seen == c.epoch
		return moveConnect
	case r.epoch < c.remote:
		return moveNone
	case r.epoch > c.remote:
		return moveRebuild
	case r.seen == c.epoch:
		c.confirmed = true
	}
	return moveAnswer
}

// renew begins a new life.
func (c *course) renew(epoch uint32) { c.epoch, c.remote, c.confirmed = epoch, 0, false }
