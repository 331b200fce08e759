//go:build verbs && cgo && linux

package verbs

import (
	"fmt"

	"moerail/internal/ibv"
	"moerail/internal/mem"
	"moerail/transport"
)

// Ids of work requests say what completes: a kind, and an index within it.
const (
	idOp       = 1 << 56
	idImm      = 2 << 56
	idRecv     = 3 << 56
	idMailRecv = 4 << 56
	idMailSend = 5 << 56
	idKind     = 0xff << 56
)

// Requests of a link wait in one of these lists. They are separate so that
// reads, which are held to what devices grant, do not stand before writes.
const (
	listSend = iota
	listWrite
	listRead
	numLists
)

var chanOf = [numLists]int{listSend: chanMsg, listWrite: chanRMA, listRead: chanRMA}

// op is one request from Post until its completion has been polled. It goes out
// as one work request, or as several where it crosses a seam of a region or is
// longer than the device carries at once.
type op struct {
	id        transport.WRID
	link      *link
	peer      transport.Peer
	local     *region
	remote    *remote
	qp        *rcQP // that the work requests under way are on
	localOff  uint64
	remoteOff uint64
	len       uint64
	done      uint64 // bytes handed to the device
	operand   uint64
	compare   uint64
	vendor    uint32
	imm       uint32
	next      int32 // in a list
	pieces    int32 // work requests under way
	op        transport.Opcode
	status    transport.Status
	inline    bool // the payload lies in ops.inlined
	waiting   bool // in a list of its link
	handed    bool // wholly handed to the device, or given up
}

// ops is where requests live: as many as MaxSend.
type ops struct {
	all     []op
	free    []int32
	done    []int32 // ring of those whose end was not polled yet
	head    int
	count   int
	inlined transport.Memory // maxInline bytes for each
	mr      *ibv.MR
	addr    uint64
}

func (o *ops) open(d *domain, n int) error {
	var err error
	if o.inlined, err = mem.Alloc(uint64(n) * maxInline); err != nil {
		return err
	}
	o.addr = mem.Addr(o.inlined.Host)
	if o.mr, err = d.pd.Register(o.addr, o.inlined.Size, ibv.LocalWrite); err != nil {
		return fmt.Errorf("%d bytes for inline payloads: %w; %s", o.inlined.Size, err, memlockText(o.inlined.Size))
	}
	o.all, o.done, o.free = make([]op, n), make([]int32, n), make([]int32, n)
	for i := range o.free {
		o.free[i] = int32(n - 1 - i)
	}
	return nil
}

// end makes the completion of an op due.
func (o *ops) end(i int32) {
	at := o.head + o.count
	if at >= len(o.done) {
		at -= len(o.done)
	}
	o.done[at] = i
	o.count++
}

// opList is a queue of ops.
type opList struct{ head, tail int32 }

func (l *opList) empty() bool { return l.head < 0 }

func (d *domain) push(l *opList, i int32) {
	o := &d.ops.all[i]
	o.next, o.waiting = -1, true
	if l.head < 0 {
		l.head = i
	} else {
		d.ops.all[l.tail].next = i
	}
	l.tail = i
}

func (d *domain) pushFront(l *opList, i int32) {
	o := &d.ops.all[i]
	o.next, o.waiting = l.head, true
	if l.head < 0 {
		l.tail = i
	}
	l.head = i
}

func (d *domain) pop(l *opList) int32 {
	i := l.head
	o := &d.ops.all[i]
	l.head, o.next, o.waiting = o.next, -1, false
	return i
}

// takeDone fills out with ends that are due.
func (d *domain) takeDone(out []transport.Completion) int {
	o := &d.ops
	n := min(o.count, len(out))
	if n == 0 {
		return 0
	}
	var messages, bytes, imms uint64
	for k := range n {
		i := o.done[o.head]
		if o.head++; o.head == len(o.done) {
			o.head = 0
		}
		x := &o.all[i]
		c := transport.Completion{ID: x.id, Op: x.op, Status: x.status, Peer: x.peer, Vendor: x.vendor}
		if x.status == transport.StatusOK {
			c.Bytes = x.len
			messages++
			bytes += x.len
			if x.op == transport.OpWriteImm {
				imms++
			}
		}
		out[k] = c
		x.link, x.local, x.remote, x.qp = nil, nil, nil, nil
		o.free = append(o.free, i)
	}
	o.count -= n
	d.stats.messages.Add(messages)
	d.stats.bytes.Add(bytes)
	if imms > 0 {
		d.stats.immsSent.Add(imms)
	}
	return n
}

// recvs are the receives for messages that the caller posted.
type recvs struct {
	all   []recv
	free  []int32
	queue []int32 // ring of those not handed to the device yet
	head  int
	count int
}

type recv struct {
	id   transport.WRID
	x    *region
	addr uint64
	len  uint32
	lkey uint32
}

func (r *recvs) open(n int) {
	r.all, r.queue, r.free = make([]recv, n), make([]int32, n), make([]int32, n)
	for i := range r.free {
		r.free[i] = int32(n - 1 - i)
	}
}
