package fabrics

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"
)

// EnvNICs names the NICs to use: one network interface for the fabrics of
// libfabric (eth0), one or more RDMA devices for verbs (mlx5_0:1,mlx5_1).
//
// Without it EFA and verbs take every device, and libfabric's TCP providers the
// interface by which rank 0 is reached: loopback where all ranks are on this
// host, unless one of libfabric's own variables chooses.
const EnvNICs = "MOERAIL_NICS"

// ifaceVariables are libfabric's own, with which a user has chosen already.
var ifaceVariables = []string{"FI_TCP_IFACE", "FI_NET_IFACE", "FI_SOCKETS_IFACE"}

// byInterface says whether a provider of libfabric goes by network interfaces.
func byInterface(provider string) bool {
	core, _, _ := strings.Cut(provider, ";")
	switch core {
	case "tcp", "net", "sockets", "udp":
		return true
	}
	return false
}

// chooseInterface is the network interface for a provider of libfabric, "" to
// leave it to the library; and whether ranks of other hosts can be reached by it.
// toward is rank 0's address, "" where all ranks are in this process.
func chooseInterface(ctx context.Context, provider, toward string, getenv func(string) string) (name string, loopback bool, err error) {
	if name = getenv(EnvNICs); name != "" {
		if strings.Contains(name, ",") {
			return "", false, fmt.Errorf("%s is %q, want one interface", EnvNICs, name)
		}
		return name, isLoopback(name), nil
	}
	if !byInterface(provider) {
		return "", false, nil
	}
	for _, v := range ifaceVariables {
		if name = getenv(v); name != "" {
			return "", isLoopback(name), nil
		}
	}
	if toward == "" {
		name, err = loopbackInterface()
	} else {
		name, err = interfaceToward(ctx, toward)
	}
	if err != nil {
		return "", false, fmt.Errorf("%w; %s can name the interface to use", err, EnvNICs)
	}
	return name, isLoopback(name), nil
}

// isLoopback: an interface that is not there is none, and whoever opens it says so.
func isLoopback(name string) bool {
	i, err := net.InterfaceByName(name)
	return err == nil && i.Flags&net.FlagLoopback != 0
}

func loopbackInterface() (string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("network interfaces: %w", err)
	}
	for _, i := range all {
		if i.Flags&net.FlagLoopback != 0 && i.Flags&net.FlagUp != 0 {
			return i.Name, nil
		}
	}
	return "", fmt.Errorf("no loopback interface is up (ip link set lo up)")
}

// lookUpWithin bounds finding the address of rank 0's name.
const lookUpWithin = 10 * time.Second

// interfaceToward is the interface by which the kernel would send to addr,
// host:port. Nothing is sent: connecting a datagram socket only looks up the
// route.
func interfaceToward(ctx context.Context, addr string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookUpWithin)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "udp", addr)
	if err != nil {
		return "", fmt.Errorf("no route to rank 0: %w", err)
	}
	defer c.Close()
	own := c.LocalAddr().(*net.UDPAddr).IP
	all, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("network interfaces: %w", err)
	}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			continue // it went away
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(own) {
				return i.Name, nil
			}
			// The whole of 127/8 is loopback's, though it lists one address.
			if n, ok := a.(*net.IPNet); ok && own.IsLoopback() && n.IP.IsLoopback() && n.Contains(own) {
				return i.Name, nil
			}
		}
	}
	return "", fmt.Errorf("no interface has %s, by which rank 0 at %s is reached", own, addr)
}
