package peergroup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// keepAlive finds a host that vanished without closing its connections.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}

// listen opens rank 0's listeners: one, or one per loopback address.
func listen(ctx context.Context, cfg *TCPConfig) ([]net.Listener, error) {
	if cfg.Listener != nil {
		return []net.Listener{cfg.Listener}, nil
	}
	addr, hosts := cfg.Bind, []string(nil)
	if addr != "" {
		host, _, _ := net.SplitHostPort(addr)
		hosts = []string{host}
	} else {
		addr = cfg.Addr
		host, _, _ := net.SplitHostPort(addr)
		hosts = bindHosts(host)
	}
	_, port, _ := net.SplitHostPort(addr)
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	var all []net.Listener
	var unavailable error
	for _, host := range hosts {
		l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, port))
		if err != nil {
			err = listenError(host, port, err)
			if len(hosts) > 1 && (errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)) {
				unavailable = err // a host without IPv6, or without IPv4
				continue
			}
			closeAll(all)
			return nil, err
		}
		all = append(all, l)
		if port == "0" {
			port = strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
		}
	}
	if len(all) == 0 {
		return nil, unavailable
	}
	return all, nil
}

// bindHosts says where rank 0 listens when its address has this host.
func bindHosts(host string) []string {
	if _, err := netip.ParseAddr(host); err == nil {
		return []string{host}
	}
	if isLocalhost(host) {
		return loopbackHosts
	}
	return []string{""}
}

// loopbackHosts are what localhost means here, without asking anybody: a minimal
// container may have neither a hosts file nor a resolver that knows the name.
var loopbackHosts = []string{"127.0.0.1", "::1"}

func isLocalhost(host string) bool {
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
}

func listenError(host, port string, err error) error {
	at := net.JoinHostPort(host, port)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("peergroup: rank 0 cannot listen on %s: port %s is in use by another process: %w", at, port, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("peergroup: rank 0 cannot listen on %s: no interface of this host has that address: %w", at, err)
	}
	return fmt.Errorf("peergroup: rank 0 cannot listen on %s: %w", at, err)
}

func closeAll(listeners []net.Listener) {
	for _, l := range listeners {
		l.Close()
	}
}
