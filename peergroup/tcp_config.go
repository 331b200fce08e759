package peergroup

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// MaxSecretBytes bounds the secret.
const MaxSecretBytes = 1024

// DefaultHandshakeTimeout is how long rank 0 gives a new connection to prove
// itself.
const DefaultHandshakeTimeout = 5 * time.Second

// TCPConfig says which rank this process is and where rank 0 is found. FromEnv
// fills it from a launcher's environment.
type TCPConfig struct {
	Rank int // 0 to Size-1
	Size int // 1 to MaxRanks
	// LocalRank is the rank's number on its host, -1 where the launcher does not
	// say. It is passed on, not used here.
	LocalRank int
	// Addr is host:port of rank 0, as every rank reaches it; IPv6 addresses in
	// brackets. Other ranks dial it until their deadline, so that rank 0 may
	// start last.
	//
	// Rank 0 listens on the address itself if it is an IP address, on the
	// loopback addresses if it is localhost, and on all interfaces if it is any
	// other name: on its own host a name often resolves to 127.0.1.1, where no
	// other host could reach it.
	Addr string
	// Bind, host:port, overrides where rank 0 listens (behind address
	// translation, say). An empty host means all interfaces.
	Bind string
	// Listener, if set, is where rank 0 listens, whatever Addr and Bind say.
	// JoinTCP closes it, also when it fails.
	Listener net.Listener `json:"-"`
	// Listening, if set, is called by rank 0 with the addresses it listens on,
	// before it waits for others.
	Listening func(addrs []net.Addr) `json:"-"`
	// Secret, 1 to MaxSecretBytes bytes, is the same on all ranks and known to
	// nobody else: 16 random bytes or more.
	Secret []byte `json:"-"`
	// Timeout is the deadline of calls whose context has none; 0 means
	// DefaultTimeout.
	Timeout time.Duration
	// HandshakeTimeout drops a connection to rank 0 that has not proved itself by
	// then; 0 means DefaultHandshakeTimeout.
	HandshakeTimeout time.Duration
}

// String shows the configuration without the secret.
func (c TCPConfig) String() string {
	return fmt.Sprintf("rank %d of %d, local rank %d, rank 0 at %q, bind %q, timeout %v", c.Rank, c.Size, c.LocalRank, c.Addr, c.Bind, c.Timeout)
}

// GoString is String: the secret is not to be printed.
func (c TCPConfig) GoString() string { return "peergroup.TCPConfig{" + c.String() + "}" }

// Fault is one wrong field or environment variable.
type Fault struct {
	Name  string // of the field or the variable
	Value string // what it held; "not shown" for a secret
	Want  string // what is allowed
}

// ConfigError holds every fault of a configuration.
type ConfigError struct{ Faults []Fault }

func (e *ConfigError) Error() string {
	var b strings.Builder
	b.WriteString("peergroup: configuration: ")
	for i, f := range e.Faults {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s is %s, want %s", f.Name, f.Value, f.Want)
	}
	return b.String()
}

func (e *ConfigError) add(name, value, want string) {
	e.Faults = append(e.Faults, Fault{name, value, want})
}

// orNil is e as an error, nil if there is no fault.
func (e *ConfigError) orNil() error {
	if len(e.Faults) == 0 {
		return nil
	}
	return e
}

func (c *TCPConfig) validate() error {
	var e ConfigError
	if c.Size < 1 || c.Size > MaxRanks {
		e.add("Size", strconv.Itoa(c.Size), fmt.Sprintf("1 to %d", MaxRanks))
	}
	if c.Rank < 0 || c.Size >= 1 && c.Rank >= c.Size {
		e.add("Rank", strconv.Itoa(c.Rank), fmt.Sprintf("0 to %d (Size-1)", c.Size-1))
	}
	if c.Rank != 0 || c.Listener == nil {
		if host, why := checkAddr(c.Addr, c.Rank == 0); why != "" {
			e.add("Addr", strconv.Quote(c.Addr), why)
		} else if host == "" {
			e.add("Addr", strconv.Quote(c.Addr), "a host before the port")
		}
		if c.Bind != "" {
			if _, why := checkAddr(c.Bind, true); why != "" {
				e.add("Bind", strconv.Quote(c.Bind), why)
			}
		}
	}
	if len(c.Secret) < 1 || len(c.Secret) > MaxSecretBytes {
		e.add("Secret", fmt.Sprintf("%d bytes long", len(c.Secret)), fmt.Sprintf("1 to %d bytes", MaxSecretBytes))
	}
	if c.Timeout < 0 {
		e.add("Timeout", c.Timeout.String(), "0 or more")
	}
	if c.HandshakeTimeout < 0 {
		e.add("HandshakeTimeout", c.HandshakeTimeout.String(), "0 or more")
	}
	return e.orNil()
}

// checkAddr splits host:port; why says what is wrong with it. Port 0 is for a
// listener alone.
func checkAddr(addr string, zeroPort bool) (host, why string) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", "host:port, an IPv6 address in brackets"
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 && !zeroPort {
		return "", "a port of 1 to 65535"
	}
	return host, ""
}
