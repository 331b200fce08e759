package fabrics

import (
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"moerail/transport/efa"
	"moerail/transport/verbs"
)

func none(string) string { return "" }

// auto never takes a software device, a device without an active port, or one
// that could not be opened; and nothing that the build has not.
func TestAutoTakesTheBestRealFabric(t *testing.T) {
	broken := errors.New("broken")
	real := func(d verbs.Device) verbs.Discovery { return verbs.Discovery{Devices: []verbs.Device{d}} }
	up, down := []verbs.Port{{Number: 1, State: "down"}, {Number: 2, State: "active", Active: true}}, []verbs.Port{{Number: 1, State: "down"}}
	for name, c := range map[string]struct {
		efa   bool
		verbs verbs.Discovery
		want  string // "" is none of both
	}{
		"nothing":           {},
		"software only":     {verbs: real(verbs.Device{Name: "rxe0", Software: true, Ports: up})},
		"library missing":   {verbs: verbs.Discovery{Err: verbs.ErrNoLibrary}},
		"efa":               {efa: true, want: "efa"},
		"both":              {efa: true, verbs: real(verbs.Device{Name: "mlx5_0", PCI: "0000:18:00.0", Ports: up}), want: "efa"},
		"verbs":             {verbs: real(verbs.Device{Name: "mlx5_0", PCI: "0000:18:00.0", Ports: up}), want: "verbs"},
		"verbs, port down":  {verbs: real(verbs.Device{Name: "mlx5_0", PCI: "0000:18:00.0", Ports: down})},
		"verbs, no access":  {verbs: real(verbs.Device{Name: "mlx5_0", PCI: "0000:18:00.0", Ports: up, Err: broken})},
		"EFA, no libfabric": {verbs: real(verbs.Device{Name: "efa_0", PCI: "0000:00:06.0", Vendor: 0x1d0f, Ports: up})},
		"second port is up": {verbs: real(verbs.Device{Name: "mlx5_0", PCI: "0000:18:00.0", Ports: []verbs.Port{down[0], up[1]}}), want: "verbs"},
	} {
		want := c.want
		if want == "efa" && !efa.Built {
			want = ""
			if verbs.Built && len(c.verbs.Devices) > 0 {
				want = "verbs"
			}
		}
		if want == "verbs" && !verbs.Built {
			want = ""
		}
		for _, one := range []bool{true, false} {
			expect := want
			if expect == "" {
				expect = map[bool]string{true: "loopback", false: "shm"}[one]
			}
			got := best(one, func() bool { return c.efa }, func() verbs.Discovery { return c.verbs })
			if got != expect {
				t.Errorf("%s, one process %v: %s, want %s", name, one, got, expect)
			}
		}
	}
}

func TestResolve(t *testing.T) {
	for _, c := range []struct {
		name       string
		oneProcess bool
		needs      bool // what the name needs is in this build
		says       string
	}{
		{"loopback", true, true, ""}, {"shm", true, true, ""}, {"shm", false, true, ""},
		{"loopback", false, true, "ranks of one process"},
		{"efa", false, efa.Built, ""}, {"libfabric:tcp", true, efa.Built, ""}, {"verbs", false, verbs.Built, ""},
		{"libfabric:", true, true, "names no provider"}, {"tcp", true, true, "no fabric"}, {"", true, true, "no fabric"},
	} {
		says := c.says
		if !c.needs {
			says = "not in this build: rebuild with -tags "
		}
		got, err := Resolve(c.name, c.oneProcess)
		var e *Error
		switch {
		case says == "" && (err != nil || got != c.name):
			t.Errorf("%s: %q, %v", c.name, got, err)
		case says != "" && (!errors.As(err, &e) || !strings.Contains(err.Error(), says)):
			t.Errorf("%s: %v, want an error with %q", c.name, err, says)
		}
	}
}

func TestInterfaceToward(t *testing.T) {
	lo, err := loopbackInterface()
	if err != nil {
		t.Skip(err)
	}
	// 127.0.1.1 is what Debian calls a host by default; no interface lists it.
	for _, addr := range []string{"127.0.0.1:29500", "127.0.1.1:29500"} {
		if got, err := interfaceToward(t.Context(), addr); err != nil || got != lo {
			t.Errorf("toward %s: %q, %v, want %s", addr, got, err, lo)
		}
	}
	// An address of this host's own that is not loopback is behind its interface.
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok || n.IP.IsLoopback() || n.IP.IsLinkLocalUnicast() || i.Flags&net.FlagUp == 0 {
				continue
			}
			if got, err := interfaceToward(t.Context(), net.JoinHostPort(n.IP.String(), "29500")); err != nil || got != i.Name {
				t.Errorf("toward %s: %q, %v, want %s", n.IP, got, err, i.Name)
			}
		}
	}
	if _, err := interfaceToward(t.Context(), "no-such-host.invalid:29500"); err == nil {
		t.Error("a name without an address: no error")
	}
}

// What a user has said goes before what would be chosen.
func TestChooseInterface(t *testing.T) {
	lo, err := loopbackInterface()
	if err != nil {
		t.Skip(err)
	}
	env := func(kv ...string) func(string) string {
		return func(name string) string {
			if i := slices.Index(kv, name); i >= 0 {
				return kv[i+1]
			}
			return ""
		}
	}
	for name, c := range map[string]struct {
		provider, toward string
		getenv           func(string) string
		want             string
		loopback, fails  bool
	}{
		"one process":    {"tcp", "", none, lo, true, false},
		"rxm":            {"tcp;ofi_rxm", "127.0.0.1:1", none, lo, true, false},
		"no interfaces":  {"shm", "127.0.0.1:1", none, "", false, false},
		"efa":            {"efa", "127.0.0.1:1", none, "", false, false},
		"named":          {"tcp", "127.0.0.1:1", env(EnvNICs, "eth7"), "eth7", false, false},
		"named for efa":  {"efa", "", env(EnvNICs, "rdmap0s6-rdm"), "rdmap0s6-rdm", false, false},
		"by libfabric":   {"tcp", "127.0.0.1:1", env("FI_TCP_IFACE", lo), "", true, false},
		"both":           {"tcp", "", env("FI_TCP_IFACE", "eth8", EnvNICs, "eth7"), "eth7", false, false},
		"two named":      {"tcp", "", env(EnvNICs, "eth7,eth8"), "", false, true},
		"no such rank 0": {"tcp", "no-such-host.invalid:1", none, "", false, true},
	} {
		got, loopback, err := chooseInterface(t.Context(), c.provider, c.toward, c.getenv)
		if got != c.want || loopback != c.loopback || (err != nil) != c.fails {
			t.Errorf("%s: %q, loopback %v, %v; want %q, %v, an error %v", name, got, loopback, err, c.want, c.loopback, c.fails)
		}
		if c.fails && err != nil && !strings.Contains(err.Error(), EnvNICs) {
			t.Errorf("%s: %v does not say what to set", name, err)
		}
	}
}

func TestOpenHasTheNICsAskedFor(t *testing.T) {
	for _, fabric := range []string{"loopback", "shm"} {
		for n := 1; n <= 4; n++ {
			s, err := Open(t.Context(), Config{Fabric: fabric, NICs: n, Getenv: none})
			if err != nil {
				t.Fatal(err)
			}
			for rank := range 3 {
				nics := s.NICs(rank)
				if len(slices.Compact(slices.Clone(nics))) != n {
					t.Errorf("%s, rank %d: NICs %v, want %d", fabric, rank, nics, n)
				}
			}
			if s.Name() != fabric || s.Reach() != "host" {
				t.Errorf("%s: called %s, reaches the %s", fabric, s.Name(), s.Reach())
			}
		}
	}
}

// An open that a build or machine has not says so, and how to mend it.
func TestOpenRefuses(t *testing.T) {
	for fabric, built := range map[string]bool{"libfabric:no-such-provider": efa.Built, "efa": efa.Built, "verbs": verbs.Built} {
		_, err := Open(t.Context(), Config{Fabric: fabric, NICs: 1, Getenv: os.Getenv})
		if err == nil && built && !strings.Contains(fabric, "no-such") {
			continue // this machine has one
		}
		var e *Error
		if !errors.As(err, &e) || !strings.HasPrefix(err.Error(), fabric+": ") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", fabric, err)
		}
		if is := errors.Is(err, efa.ErrNotBuilt) || errors.Is(err, verbs.ErrNotBuilt); is == built {
			t.Errorf("%s: %v; built %v", fabric, err, built)
		}
	}
	if _, err := openVerbs(Config{Getenv: func(name string) string { return map[string]string{EnvGID: "x"}[name] }}); err == nil ||
		!strings.Contains(err.Error(), EnvGID) {
		t.Errorf("GID index x: %v", err)
	}
}
