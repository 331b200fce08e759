package peergroup

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// Pauses between two tries to reach rank 0.
const (
	minRedial = 10 * time.Millisecond
	maxRedial = 500 * time.Millisecond
)

// TCPGroup is a group joined over TCP; JoinTCP's Group is one.
type TCPGroup struct {
	*member
	local  *localRank    // rank 0
	server *server       // rank 0
	link   *link         // other ranks
	served chan struct{} // closed when the link's reader has ended; other ranks
	once   sync.Once
}

// JoinTCP makes this process rank cfg.Rank of a group and returns when all ranks
// have joined. Rank 0 listens, the others dial until the deadline; a rank 0 that
// is restarted before the group is complete is dialled again. The deadline is
// ctx's, or cfg.Timeout from now.
//
// It fails with *ConfigError on faults of cfg, *MissingError when the deadline
// passes, *RefusedError when rank 0 turns this rank away (another secret, a rank
// number or world size that does not fit), and with the system's error if rank 0
// cannot listen. Ranks that were refused do not disturb the others.
//
// Losing rank 0 ends the group. A job that wants to survive its other ranks keeps
// rank 0 open longest.
func JoinTCP(ctx context.Context, cfg TCPConfig) (Group, error) {
	g, err := joinTCP(ctx, cfg)
	if err != nil {
		return nil, err // not a typed nil
	}
	return g, nil
}

func joinTCP(ctx context.Context, cfg TCPConfig) (*TCPGroup, error) {
	if err := cfg.validate(); err != nil {
		if cfg.Listener != nil {
			cfg.Listener.Close()
		}
		return nil, err
	}
	cfg.Secret = slices.Clone(cfg.Secret)
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cfg.Timeout)
		defer cancel()
	}
	if cfg.Rank == 0 {
		return host(ctx, &cfg)
	}
	if cfg.Listener != nil {
		cfg.Listener.Close()
	}
	return join(ctx, &cfg)
}

// host is JoinTCP on rank 0.
func host(ctx context.Context, cfg *TCPConfig) (*TCPGroup, error) {
	listeners, err := listen(ctx, cfg)
	if err != nil {
		return nil, err
	}
	h := newHub(cfg.Size, false)
	local := newLocalRank(h, 0, cfg.Size)
	local.timeout = cfg.Timeout
	g := &TCPGroup{member: local.member, local: local, server: newServer(h, cfg, listeners)}
	if cfg.Listening != nil {
		cfg.Listening(g.ListenAddrs())
	}
	if _, err := g.gather(ctx, joinKey, nil); err != nil {
		var missing *MissingError
		if errors.As(err, &missing) {
			h.abandon(joinKey, absence{missing: missing.Missing, gaveUp: missing.GaveUp})
		}
		g.Close()
		return nil, err
	}
	return g, nil
}

// join is JoinTCP on every other rank.
func join(ctx context.Context, cfg *TCPConfig) (*TCPGroup, error) {
	var instance [instanceBytes]byte
	rand.Read(instance[:])
	var last error
	deadline, _ := ctx.Deadline()
	for pause := minRedial; ; pause = min(2*pause, maxRedial) {
		g, err := joinOnce(ctx, cfg, instance)
		if err == nil {
			return g, nil
		}
		var refused *RefusedError
		var missing *MissingError
		if errors.As(err, &refused) || errors.As(err, &missing) {
			return nil, err
		}
		// A try that the deadline cut short tells less than the one before. The
		// dialer watches the clock itself and may be ahead of ctx.
		if last == nil || time.Now().Before(deadline) {
			last = err
		}
		select {
		case <-ctx.Done():
			return nil, &MissingError{Rank: cfg.Rank, Size: cfg.Size, Key: keyText(joinKey), Missing: []int{0},
				Cause: fmt.Errorf("%w; the last try to reach it: %v", ctx.Err(), last)}
		case <-time.After(pause):
		}
	}
}

// dial connects to rank 0 where it listens; a localhost is not looked up there either.
func dial(ctx context.Context, addr string) (conn net.Conn, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	hosts := []string{host}
	if isLocalhost(host) {
		hosts = loopbackHosts
	}
	dialer := net.Dialer{KeepAliveConfig: keepAlive, Timeout: 2 * DefaultHandshakeTimeout}
	var first error
	for _, host := range hosts {
		if conn, err = dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, port)); err == nil {
			return conn, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// joinOnce is one try.
func joinOnce(ctx context.Context, cfg *TCPConfig, instance [instanceBytes]byte) (*TCPGroup, error) {
	conn, err := dial(ctx, cfg.Addr)
	if err != nil {
		return nil, dialError(err)
	}
	conn.SetDeadline(time.Now().Add(2 * DefaultHandshakeTimeout))
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	r := bufio.NewReader(conn)
	err = askToJoin(struct {
		io.Reader
		io.Writer
	}{r, conn}, cfg, instance)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("joining at %s: %w", conn.RemoteAddr(), err)
	}
	conn.SetDeadline(time.Time{})

	g := &TCPGroup{member: newMember(cfg.Rank, cfg.Size, cfg.Timeout), link: newLink(conn, r), served: make(chan struct{})}
	g.up = g
	go g.serve()
	if _, err = g.gather(ctx, joinKey, nil); err != nil {
		g.Close()
		var missing *MissingError
		if errors.As(err, &missing) && missing.Cause == nil {
			missing.Cause = errors.New("rank 0 gave up waiting")
		}
		return nil, err
	}
	return g, nil
}

// dialError adds what the usual trap looks like from the outside.
func dialError(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		if a, ok := op.Addr.(*net.TCPAddr); ok && a.IP.IsLoopback() {
			return fmt.Errorf("%w (%s is a loopback address and reaches this host alone)", err, a.IP)
		}
	}
	return err
}

// serve takes rank 0's frames until the connection ends.
func (g *TCPGroup) serve() {
	defer close(g.served)
	err := g.link.serve(func(kind frameKind, body []byte) error {
		switch kind {
		case kindBlob:
			id, rank, blob, err := decodeBlob(body, g.size)
			if err != nil {
				return err
			}
			return g.part(id, rank, blob)
		case kindFailed:
			id, a, err := decodeFailed(body, g.size)
			if err != nil {
				return err
			}
			g.failed(id, a)
			return nil
		case kindLost:
			e, err := decodeLost(body, g.size)
			if err != nil {
				return err
			}
			g.lost(e)
			return nil
		}
		return fmt.Errorf("frame of kind %d from rank 0", kind)
	})
	reason := LossProtocol
	if isConnectionError(err) {
		reason = LossConnection
	}
	g.lost(LostError{Rank: 0, Reason: reason})
	g.link.abort()
}

func (g *TCPGroup) contribute(id uint32, key string, blob []byte) {
	g.link.send(encodeContribute(id, key, blob))
}

func (g *TCPGroup) withdraw(id uint32) { g.link.send(encodeWithdraw(id)) }

// Close implements Group. On rank 0 it ends the group for everybody.
func (g *TCPGroup) Close() error {
	g.once.Do(func() {
		if g.server != nil {
			g.local.Close()
			g.server.close()
			return
		}
		g.member.close()
		g.link.send(encodeLeave())
		g.link.finish()
		<-g.served
	})
	return nil
}

// ListenAddrs tells where rank 0 listens. It is nil on other ranks.
func (g *TCPGroup) ListenAddrs() []net.Addr {
	if g.server == nil {
		return nil
	}
	addrs := make([]net.Addr, len(g.server.listeners))
	for i, l := range g.server.listeners {
		addrs[i] = l.Addr()
	}
	return addrs
}

// Stats counts connections to rank 0 that did not become ranks.
type Stats struct {
	Refused uint64 // a wrong secret, rank or size, or no frame at all
	Dropped uint64 // silent for too long, cut off, or crowded out
}

// Stats is all zero on ranks other than 0. A connection is counted when rank 0 has
// answered it; after Close all are.
func (g *TCPGroup) Stats() Stats {
	if g.server == nil {
		return Stats{}
	}
	return Stats{Refused: g.server.refused.Load(), Dropped: g.server.dropped.Load()}
}
