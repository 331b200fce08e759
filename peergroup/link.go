package peergroup

import (
	"io"
	"net"
	"sync"
	"time"
)

// farewell bounds how long Close spends on getting the last frames out and
// seeing the other side go.
const farewell = time.Second

// link is an established connection: frames go out through a queue, so that
// nobody who sends ever waits for the peer.
//
// The queue needs no bound of its own. A rank has at most MaxInFlight calls, and
// what is queued are those calls or their answers.
type link struct {
	conn net.Conn
	r    io.Reader

	mu     sync.Mutex
	queue  net.Buffers   // guarded by mu
	ending bool          // guarded by mu; flush, then end the sending direction
	wake   chan struct{} // one token: the queue or ending changed
	done   chan struct{} // closed when the writer has ended
}

// newLink starts the writer. r reads from conn, perhaps through a buffer.
func newLink(conn net.Conn, r io.Reader) *link {
	l := &link{conn: conn, r: r, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go l.write()
	return l
}

// send queues one frame. It never blocks and keeps the parts.
func (l *link) send(parts [][]byte) {
	l.mu.Lock()
	if !l.ending {
		l.queue = append(l.queue, parts...)
	}
	l.mu.Unlock()
	l.rouse()
}

func (l *link) rouse() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *link) write() {
	defer close(l.done)
	for range l.wake {
		l.mu.Lock()
		out, ending := l.queue, l.ending
		l.queue = nil
		l.mu.Unlock()
		if _, err := out.WriteTo(l.conn); err != nil {
			l.conn.Close() // the reader finds out
			l.mu.Lock()
			l.queue, l.ending = nil, true
			l.mu.Unlock()
			return
		}
		if ending {
			if c, ok := l.conn.(interface{ CloseWrite() error }); ok {
				c.CloseWrite()
			}
			return
		}
	}
}

// finish lets the queue drain and says goodbye, within the farewell time. The
// reader goes on until the peer has closed too: closing a socket with unread
// input would reset the connection and could destroy what was just sent.
func (l *link) finish() {
	l.conn.SetDeadline(time.Now().Add(farewell))
	l.mu.Lock()
	l.ending = true
	l.mu.Unlock()
	l.rouse()
}

// abort ends the link now.
func (l *link) abort() {
	l.conn.Close()
	l.mu.Lock()
	l.ending = true
	l.mu.Unlock()
	l.rouse()
	<-l.done
}

// drain reads and drops until the peer has closed.
func (l *link) drain() { io.Copy(io.Discard, l.r) }

// serve hands every frame to handle until the connection ends, or handle fails.
func (l *link) serve(handle func(kind frameKind, body []byte) error) error {
	for {
		kind, body, err := readFrame(l.r, maxBody)
		if err != nil {
			return err
		}
		if err := handle(kind, body); err != nil {
			return err
		}
	}
}
