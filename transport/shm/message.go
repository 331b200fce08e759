package shm

import (
	"encoding/binary"
	"fmt"

	"moerail/transport"
)

// A message lies in the lane's byte ring as its length (8 bytes) and its bytes,
// padded to 8; it may wrap round the end. It is published as a whole.

// send copies a message into the peer's lane.
func (d *domain) send(id transport.WRID, p *peer, src []byte) error {
	n := uint64(len(src))
	if n > maxRecvSize {
		return fmt.Errorf("%w: send of %d bytes, the limit is %d", transport.ErrOutOfRange, n, maxRecvSize)
	}
	st := access(p, nil, 0)
	if st == transport.StatusOK {
		taken := p.msgHead.Load()
		if waiting := p.msgSent - taken; waiting > msgRingBytes {
			p.fail()
			st = transport.StatusPeerLost
		} else if msgRingBytes-waiting < msgHeadBytes+padded(n) {
			return transport.ErrAgain
		}
	}
	if st == transport.StatusOK {
		at := p.msgSent % msgRingBytes
		binary.NativeEndian.PutUint64(p.msgs[at:], n)
		body := (at + msgHeadBytes) % msgRingBytes
		first := min(n, msgRingBytes-body)
		copyBytes(p.msgs[body:body+first], src[:first])
		copyBytes(p.msgs[:n-first], src[first:])
		p.msgSent += msgHeadBytes + padded(n)
		p.msgTail.Store(p.msgSent)
		p.ring()
	}
	d.finish(transport.OpSend, id, p, n, st)
	return nil
}

// recvQueue holds posted receives, first come first served.
type recvQueue struct {
	ring []postedRecv // a power of two long
	max  int
	head uint64
	tail uint64
}

type postedRecv struct {
	id  transport.WRID
	x   *region
	buf []byte
}

func (q *recvQueue) init(n int) {
	size := 1
	for size < n {
		size *= 2
	}
	q.ring, q.max = make([]postedRecv, size), n
}

func (q *recvQueue) len() int { return int(q.tail - q.head) }

func (q *recvQueue) at(i uint64) *postedRecv { return &q.ring[i&uint64(len(q.ring)-1)] }

// PostRecv implements transport.Domain. A receive into a region that closes
// meanwhile comes back as StatusFlushed when its turn comes.
func (d *domain) PostRecv(rrs []transport.RecvRequest) (int, error) {
	if !d.enter() {
		return 0, transport.ErrClosed
	}
	n, err := 0, error(nil)
	for n < len(rrs) {
		if d.recvs.len() >= d.recvs.max {
			err = transport.ErrAgain
			break
		}
		rr := &rrs[n]
		r := postedRecv{id: rr.ID}
		if rr.Len > 0 || rr.Local != transport.NoKey {
			if r.x = d.regions.get(int32(rr.Local)); r.x == nil {
				err = fmt.Errorf("%w: local key %d", transport.ErrBadHandle, rr.Local)
				break
			}
			if r.buf, err = r.x.slice(rr.Off, rr.Len); err != nil {
				break
			}
		}
		*d.recvs.at(d.recvs.tail) = r
		d.recvs.tail++
		n++
	}
	d.countRecvPost(err)
	d.leave()
	return n, err
}

func (d *domain) countRecvPost(err error) {
	if err == transport.ErrAgain {
		d.guard.stat.again++
	}
}

// nextMessage looks at what the sender published: ok with the message's length,
// or nonsense when no message can look like that.
func (l *inLane) nextMessage() (length uint64, ok, nonsense bool) {
	waiting := l.msgTail.Load() - l.msgRead
	if waiting == 0 {
		return 0, false, false
	}
	if waiting > msgRingBytes || waiting < msgHeadBytes || waiting%8 != 0 {
		return 0, false, true
	}
	length = binary.NativeEndian.Uint64(l.msgs[l.msgRead%msgRingBytes:])
	if length > maxRecvSize || msgHeadBytes+padded(length) > waiting {
		return 0, false, true
	}
	return length, true, false
}

// takeMessage moves the next message, of the given length, into a receive.
func (l *inLane) takeMessage(length uint64, dst []byte) (copied uint64, st transport.Status) {
	copied = min(length, uint64(len(dst)))
	body := (l.msgRead + msgHeadBytes) % msgRingBytes
	first := min(copied, msgRingBytes-body)
	copyBytes(dst[:first], l.msgs[body:body+first])
	copyBytes(dst[first:copied], l.msgs[:copied-first])
	l.msgRead += msgHeadBytes + padded(length)
	if copied < length {
		return copied, transport.StatusTruncated
	}
	return copied, transport.StatusOK
}
