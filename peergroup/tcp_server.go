package peergroup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// extraUnproved is how many connections may be unproved at a time, beyond one
// per rank. One more puts out the oldest: who has said nothing longest is the
// least likely to be a rank.
const extraUnproved = 64

// errLeft ends the service of a rank that said goodbye.
var errLeft = errors.New("rank has left")

// server is rank 0's side of TCP: it lets ranks in and carries their frames to
// the hub.
type server struct {
	hub       *hub
	size      int
	secret    []byte
	patience  time.Duration
	listeners []net.Listener
	wg        sync.WaitGroup

	refused atomic.Uint64
	dropped atomic.Uint64

	mu       sync.Mutex
	closing  bool                     // guarded by mu
	unproved []net.Conn               // guarded by mu; oldest first
	seats    map[*remoteSeat]struct{} // guarded by mu
}

// remoteSeat is how the hub reaches a rank of another process.
type remoteSeat struct {
	rank     int
	instance [instanceBytes]byte
	link     *link
}

func (s *remoteSeat) result(id uint32, blobs [][]byte) {
	parts := make([][]byte, 0, 2*len(blobs))
	for r, b := range blobs {
		parts = append(parts, encodeBlob(id, r, b)...)
	}
	s.link.send(parts)
}

func (s *remoteSeat) failed(id uint32, a absence) { s.link.send(encodeFailed(id, a)) }
func (s *remoteSeat) lost(e LostError)            { s.link.send(encodeLost(e)) }

func newServer(h *hub, cfg *TCPConfig, listeners []net.Listener) *server {
	s := &server{hub: h, size: cfg.Size, secret: cfg.Secret, patience: cfg.HandshakeTimeout,
		listeners: listeners, seats: make(map[*remoteSeat]struct{})}
	if s.patience <= 0 {
		s.patience = DefaultHandshakeTimeout
	}
	for _, l := range listeners {
		s.wg.Go(func() { s.accept(l) })
	}
	return s
}

func (s *server) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || s.isClosing() {
				return
			}
			// Out of descriptors, most likely, and that passes.
			time.Sleep(20 * time.Millisecond)
			continue
		}
		if s.receive(conn) {
			s.wg.Go(func() { s.converse(conn) })
		}
	}
}

func (s *server) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// receive enters a new connection among the unproved ones.
func (s *server) receive(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		conn.Close()
		return false
	}
	if len(s.unproved) >= extraUnproved+s.size {
		s.unproved[0].Close()
		s.unproved = slices.Delete(s.unproved, 0, 1)
	}
	s.unproved = append(s.unproved, conn)
	return true
}

// converse is the life of one connection.
func (s *server) converse(conn net.Conn) {
	conn.SetDeadline(time.Now().Add(s.patience))
	r := bufio.NewReader(conn)
	h, welcome, err := admit(struct {
		io.Reader
		io.Writer
	}{r, conn}, s.size, s.secret)
	if err != nil {
		if isConnectionError(err) {
			s.dropped.Add(1)
		} else {
			s.refused.Add(1)
		}
		sendOff(conn)
	}
	s.mu.Lock()
	if i := slices.Index(s.unproved, conn); i >= 0 {
		s.unproved = slices.Delete(s.unproved, i, i+1)
	}
	s.mu.Unlock()
	if err != nil {
		return
	}

	seat := &remoteSeat{rank: int(h.rank), instance: h.instance}
	if !s.seat(seat, conn, r, welcome) {
		return
	}
	err = seat.link.serve(func(kind frameKind, body []byte) error { return s.handle(seat, kind, body) })
	reason := LossProtocol
	switch {
	case errors.Is(err, errLeft):
		reason = LossClosed
	case isConnectionError(err):
		reason = LossConnection
	}
	s.hub.leave(seat.rank, seat, reason)
	if reason == LossClosed {
		seat.link.finish()
		seat.link.drain()
	}
	seat.link.abort()
	s.mu.Lock()
	delete(s.seats, seat)
	s.mu.Unlock()
}

// seat gives a proved rank its place, or refuses it.
func (s *server) seat(seat *remoteSeat, conn net.Conn, r io.Reader, welcome []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		conn.Close()
		return false
	}
	conn.SetDeadline(time.Time{})
	seat.link = newLink(conn, r)
	// Nothing is sent to a seat before its rank has contributed something, so
	// the welcome is the first frame.
	taken := s.hub.take(seat.rank, seat, func(old sink) bool {
		o, ok := old.(*remoteSeat)
		if ok && o.instance == seat.instance {
			o.link.conn.Close()
			return true
		}
		return false
	})
	switch taken {
	case seatTaken, seatLate:
		s.refused.Add(1)
		code := refuseTaken
		if taken == seatLate {
			code = refuseLate
		}
		seat.link.send([][]byte{encodeRefuse(code, uint32(seat.rank))})
		seat.link.finish()
		s.wg.Go(func() {
			seat.link.drain()
			seat.link.abort()
		})
		return false
	}
	seat.link.send([][]byte{welcome})
	s.seats[seat] = struct{}{}
	return true
}

func (s *server) handle(seat *remoteSeat, kind frameKind, body []byte) error {
	switch kind {
	case kindContribute:
		id, key, blob, err := decodeContribute(body)
		if err != nil {
			return err
		}
		return s.hub.contribute(seat.rank, seat, id, key, blob)
	case kindWithdraw:
		id, err := decodeWithdraw(body)
		if err != nil {
			return err
		}
		s.hub.withdraw(seat.rank, seat, id)
		return nil
	case kindLeave:
		return errLeft
	}
	return fmt.Errorf("frame of kind %d from rank %d", kind, seat.rank)
}

// close stops listening, lets what is queued go out and waits for every
// goroutine, within the farewell time.
func (s *server) close() {
	s.mu.Lock()
	s.closing = true
	closeAll(s.listeners)
	for _, c := range s.unproved {
		c.Close()
	}
	for seat := range s.seats {
		seat.link.finish()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// sendOff closes a connection so that a refusal just written is not destroyed by
// input that nobody has read.
func sendOff(conn net.Conn) {
	conn.SetDeadline(time.Now().Add(farewell / 4))
	if c, ok := conn.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
		io.CopyN(io.Discard, conn, 1<<16)
	}
	conn.Close()
}

// isConnectionError tells a connection that ended from one that said something
// wrong.
func isConnectionError(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}
