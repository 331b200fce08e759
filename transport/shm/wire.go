package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"moerail/transport"
)

// What goes over the socket. Packets are kept whole by the socket (SEQPACKET),
// little endian, of fixed size per kind; descriptors ride along.
//
//	hello    sender -> receiver  once, with the sender's guards object
//	welcome  receiver -> sender  once, with lane, bell and region table
//	ask      sender -> receiver  one region, by its key
//	grant    receiver -> sender  the answer, with the region's object if granted
const (
	packetMagic = 0x6d527061 // "mRpa"

	kindHello   = 1
	kindWelcome = 2
	kindAsk     = 3
	kindGrant   = 4

	packetHead   = 8 // magic 4, kind 1, version 1, zero 2
	helloBytes   = packetHead + 16 + 8 + 8 + addressBytes
	welcomeBytes = packetHead + 8
	askBytes     = packetHead + 8 + 8 + 8
	grantBytes   = packetHead + 8 + 8 + 8 + 8

	maxPacket  = 256
	maxPassed  = 3 // descriptors in one packet
	grantOK    = 0
	grantStale = 1 // no such region now
)

var errPacket = errors.New("shm: malformed packet")

type hello struct {
	secret     [16]byte // the receiver's
	generation uint64   // the receiver's
	guardOff   uint64   // of the sender's guard in the guards object
	from       [addressBytes]byte
}

type welcome struct{ lane uint32 }

type ask struct {
	id    uint64 // comes back in the grant
	nonce uint64
	index uint32
}

type grant struct {
	id     uint64
	offset uint64 // of the region in its object
	size   uint64
	status uint32
	access transport.Access
}

func packet(kind byte, size int) []byte {
	b := make([]byte, packetHead, size)
	binary.LittleEndian.PutUint32(b, packetMagic)
	b[4], b[5] = kind, layoutVersion
	return b
}

func checkPacket(b []byte, kind byte, size int) error {
	if len(b) != size {
		return fmt.Errorf("%w: %d bytes, want %d of kind %d", errPacket, len(b), size, kind)
	}
	if m := binary.LittleEndian.Uint32(b); m != packetMagic || b[4] != kind || b[5] != layoutVersion || b[6]|b[7] != 0 {
		return fmt.Errorf("%w: starts %x, want kind %d of version %d", errPacket, b[:packetHead], kind, layoutVersion)
	}
	return nil
}

func (h *hello) encode() []byte {
	b := packet(kindHello, helloBytes)
	b = append(b, h.secret[:]...)
	b = binary.LittleEndian.AppendUint64(b, h.generation)
	b = binary.LittleEndian.AppendUint64(b, h.guardOff)
	return append(b, h.from[:]...)
}

func decodeHello(b []byte) (hello, error) {
	var h hello
	if err := checkPacket(b, kindHello, helloBytes); err != nil {
		return h, err
	}
	copy(h.secret[:], b[8:])
	h.generation = binary.LittleEndian.Uint64(b[24:])
	h.guardOff = binary.LittleEndian.Uint64(b[32:])
	copy(h.from[:], b[40:])
	if h.guardOff%guardBytes != 0 || h.guardOff >= guardBytes*maxDomains {
		return h, fmt.Errorf("%w: guard at %d, want a multiple of %d below %d", errPacket, h.guardOff, guardBytes, guardBytes*maxDomains)
	}
	if _, err := decodeAddress(h.from[:]); err != nil {
		return h, fmt.Errorf("%w: %w", errPacket, err)
	}
	return h, nil
}

func (w *welcome) encode() []byte {
	b := packet(kindWelcome, welcomeBytes)
	b = binary.LittleEndian.AppendUint32(b, w.lane)
	return binary.LittleEndian.AppendUint32(b, laneBytes)
}

func decodeWelcome(b []byte) (welcome, error) {
	if err := checkPacket(b, kindWelcome, welcomeBytes); err != nil {
		return welcome{}, err
	}
	w := welcome{lane: binary.LittleEndian.Uint32(b[8:])}
	if size := binary.LittleEndian.Uint32(b[12:]); w.lane >= maxLanes || size != laneBytes {
		return w, fmt.Errorf("%w: lane %d (limit %d) of %d bytes (want %d)", errPacket, w.lane, maxLanes, size, laneBytes)
	}
	return w, nil
}

func (a *ask) encode() []byte {
	b := packet(kindAsk, askBytes)
	b = binary.LittleEndian.AppendUint64(b, a.id)
	b = binary.LittleEndian.AppendUint64(b, a.nonce)
	return binary.LittleEndian.AppendUint64(b, uint64(a.index))
}

func decodeAsk(b []byte) (ask, error) {
	if err := checkPacket(b, kindAsk, askBytes); err != nil {
		return ask{}, err
	}
	a := ask{id: binary.LittleEndian.Uint64(b[8:]), nonce: binary.LittleEndian.Uint64(b[16:])}
	index := binary.LittleEndian.Uint64(b[24:])
	if index >= maxRegions || a.nonce == 0 {
		return a, fmt.Errorf("%w: asks for region %d (limit %d), nonce %#x", errPacket, index, maxRegions, a.nonce)
	}
	a.index = uint32(index)
	return a, nil
}

func (g *grant) encode() []byte {
	b := packet(kindGrant, grantBytes)
	b = binary.LittleEndian.AppendUint64(b, g.id)
	b = binary.LittleEndian.AppendUint64(b, g.offset)
	b = binary.LittleEndian.AppendUint64(b, g.size)
	b = binary.LittleEndian.AppendUint32(b, g.status)
	return binary.LittleEndian.AppendUint32(b, uint32(g.access))
}

func decodeGrant(b []byte) (grant, error) {
	if err := checkPacket(b, kindGrant, grantBytes); err != nil {
		return grant{}, err
	}
	g := grant{
		id:     binary.LittleEndian.Uint64(b[8:]),
		offset: binary.LittleEndian.Uint64(b[16:]),
		size:   binary.LittleEndian.Uint64(b[24:]),
		status: binary.LittleEndian.Uint32(b[32:]),
	}
	access := binary.LittleEndian.Uint32(b[36:])
	if g.status > grantStale || access&^uint32(transport.AccessAll) != 0 {
		return g, fmt.Errorf("%w: grant with status %d, access %#x", errPacket, g.status, access)
	}
	g.access = transport.Access(access)
	return g, nil
}

func sendPacket(c *net.UnixConn, b []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	n, _, err := c.WriteMsgUnix(b, oob, nil)
	if err == nil && n != len(b) {
		err = fmt.Errorf("%w: %d of %d bytes sent", errPacket, n, len(b))
	}
	return err
}

// received is one packet. Its descriptors belong to the receiver of it until
// drop; b is valid until the next recvPacket with the same buffer.
type received struct {
	b   []byte
	fds []int
}

func (r *received) drop() {
	for _, fd := range r.fds {
		unix.Close(fd)
	}
	r.fds = nil
}

func recvPacket(c *net.UnixConn, buf []byte) (received, error) {
	oob := make([]byte, unix.CmsgSpace(4*maxPassed))
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		return received{}, err
	}
	r := received{b: buf[:n]}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	for i := 0; err == nil && i < len(msgs); i++ {
		if msgs[i].Header.Level != unix.SOL_SOCKET || msgs[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		var fds []int
		fds, err = unix.ParseUnixRights(&msgs[i])
		r.fds = append(r.fds, fds...)
	}
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = fmt.Errorf("%w: longer than %d bytes or with more than %d descriptors", errPacket, len(buf), maxPassed)
	}
	if err != nil {
		r.drop()
		return received{}, err
	}
	return r, nil
}
