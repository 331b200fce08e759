package peergroup

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestJoinWithoutOneRank(t *testing.T) {
	cfgs := configs(loopbackListener(t), 4)
	_, errs := joinAll(shortly(t), cfgs[:3])
	for r, err := range errs {
		m := asMissing(t, r, err)
		if !slices.Equal(m.Missing, []int{3}) || m.Key != "join" {
			t.Errorf("rank %d: %v, want rank 3 missing", r, err)
		}
	}
}

func TestJoinWithoutRankZero(t *testing.T) {
	l := loopbackListener(t)
	cfgs := configs(l, 3)
	l.Close()
	_, errs := joinAll(shortly(t), cfgs[1:])
	for i, err := range errs {
		m := asMissing(t, i+1, err)
		if !slices.Equal(m.Missing, []int{0}) || !strings.Contains(err.Error(), "refused") || !strings.Contains(err.Error(), "loopback") {
			t.Errorf("%v, want rank 0 missing, the refused connection and the hint", err)
		}
	}
}

// Rank 0 may come last, and may be restarted while the others wait.
func TestRankZeroLateAndRestarted(t *testing.T) {
	l := loopbackListener(t)
	addr := l.Addr().String()
	cfgs := configs(l, 3)
	ended := make(chan error, 2)
	for _, cfg := range cfgs[1:] {
		go func() {
			g, err := JoinTCP(within(t), cfg)
			if err == nil {
				err = Barrier(within(t), g, "b")
				defer g.Close()
			}
			ended <- err
		}()
	}
	// A first life of rank 0 that is torn down once both have a seat in it.
	h := newHub(3, false)
	s := newServer(h, &cfgs[0], []net.Listener{l})
	waitsFor(h, 1, joinKey)
	waitsFor(h, 2, joinKey)
	s.close()

	cfg := cfgs[0]
	var err error
	if cfg.Listener, err = net.Listen("tcp", addr); err != nil {
		t.Fatal(err)
	}
	g, err := JoinTCP(within(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if err := Barrier(within(t), g, "b"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// unfinished starts ranks 0 to size-2 and returns a function that lets the last
// one join, checks that the job works, and closes it.
func unfinished(t *testing.T, size int) (cfgs []TCPConfig, finish func() Stats) {
	t.Helper()
	cfgs = configs(loopbackListener(t), size)
	groups, errs := make([]Group, size), make([]error, size)
	done := make(chan int, size)
	for r := range size - 1 {
		go func() {
			groups[r], errs[r] = JoinTCP(within(t), cfgs[r])
			done <- r
		}()
	}
	return cfgs, func() Stats {
		t.Helper()
		groups[size-1], errs[size-1] = JoinTCP(within(t), cfgs[size-1])
		for range size - 1 {
			<-done
		}
		noErrors(t, errs)
		noErrors(t, onAll(groups, func(g Group) error { return Barrier(within(t), g, "works") }))
		closeGroups(groups) // a connection is counted after it was answered
		return groups[0].(*TCPGroup).Stats()
	}
}

func wantRefused(t *testing.T, err error, texts ...string) {
	t.Helper()
	var refused *RefusedError
	if !errors.As(err, &refused) {
		t.Fatalf("%v, want a *RefusedError", err)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not say %q", err, text)
		}
	}
}

func TestWrongSecret(t *testing.T) {
	cfgs, finish := unfinished(t, 3)
	for _, secret := range []string{"wrong", string(testSecret[:31]), string(testSecret) + "x"} {
		bad := cfgs[2]
		bad.Secret = []byte(secret)
		_, err := JoinTCP(within(t), bad)
		wantRefused(t, err, "rank 2", "secret")
		if !errors.Is(err, ErrSecret) {
			t.Errorf("%v is not ErrSecret", err)
		}
		if strings.Contains(err.Error(), secret) && secret != "wrong" || strings.Contains(err.Error(), string(testSecret)) {
			t.Errorf("a secret is in %q", err)
		}
	}
	if s := finish(); s.Refused != 3 {
		t.Errorf("%+v, want 3 refused", s)
	}
}

// Of two ranks of one number the second is refused, whichever that is, and the
// job goes on with the first.
func TestSecondRankOfANumber(t *testing.T) {
	cfgs := configs(loopbackListener(t), 3)
	type outcome struct {
		g   Group
		err error
	}
	twins, zero := make(chan outcome, 2), make(chan outcome, 1)
	for range 2 {
		go func() {
			g, err := JoinTCP(within(t), cfgs[1])
			twins <- outcome{g, err}
		}()
	}
	go func() {
		g, err := JoinTCP(within(t), cfgs[0])
		zero <- outcome{g, err}
	}()
	second := <-twins // the group is not complete, so only a refusal can come
	wantRefused(t, second.err, "rank 1 has joined already")
	last, err := JoinTCP(within(t), cfgs[2])
	first, host := <-twins, <-zero
	noErrors(t, []error{host.err, first.err, err})
	groups := []Group{host.g, first.g, last}
	defer closeGroups(groups)
	noErrors(t, onAll(groups, func(g Group) error { return Barrier(within(t), g, "works") }))
	if s := host.g.(*TCPGroup).Stats(); s.Refused != 1 {
		t.Errorf("%+v, want 1 refused", s)
	}
}

func TestSecondRankZeroAndLateComers(t *testing.T) {
	groups := newTCP(t, 2)
	addr := groups[0].(*TCPGroup).ListenAddrs()[0].String()
	cfg := TCPConfig{Rank: 0, Size: 2, Addr: addr, Secret: testSecret}
	_, port, _ := net.SplitHostPort(addr)
	if _, err := JoinTCP(within(t), cfg); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), port) {
		t.Errorf("%v, want the occupied port named", err)
	}
	cfg.Rank = 1
	_, err := JoinTCP(within(t), cfg)
	wantRefused(t, err, "rank 1 has joined already")
	noErrors(t, onAll(groups, func(g Group) error { return Barrier(within(t), g, "b") }))
	groups[1].Close()
	_, err = JoinTCP(within(t), cfg)
	wantRefused(t, err, "takes nobody any more")
}

func TestWorldSizesDiffer(t *testing.T) {
	cfgs, finish := unfinished(t, 2)
	bad := cfgs[1]
	bad.Rank, bad.Size = 5, 8
	_, err := JoinTCP(within(t), bad)
	wantRefused(t, err, "rank 5", "world size 8", "rank 0 has 2")
	if s := finish(); s.Refused != 1 {
		t.Errorf("%+v, want 1 refused", s)
	}
}

func TestConfigFaults(t *testing.T) {
	_, err := JoinTCP(within(t), TCPConfig{Rank: 4, Size: 4, Addr: "nohost", Timeout: -1, HandshakeTimeout: -1})
	var faults *ConfigError
	if !errors.As(err, &faults) || len(faults.Faults) != 5 {
		t.Fatalf("%v, want five faults at once", err)
	}
	for _, text := range []string{"Rank is 4, want 0 to 3", `"nohost"`, "Secret", "Timeout", "HandshakeTimeout"} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not say %q", err, text)
		}
	}
	for _, size := range []int{-1, 0, MaxRanks + 1} {
		if _, err := JoinTCP(within(t), TCPConfig{Size: size, Addr: "h:1", Secret: testSecret}); !errors.As(err, &faults) {
			t.Errorf("size %d: %v", size, err)
		}
	}
}

// freePort is a port that was free a moment ago.
func freePort(t *testing.T) string {
	l := loopbackListener(t)
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func TestAddresses(t *testing.T) {
	v6 := false
	if l, err := net.Listen("tcp", "[::1]:0"); err == nil {
		v6 = true
		l.Close()
	}
	for host, v4only := range map[string]bool{"127.0.0.1": true, "localhost": true, "rank0.localhost": true, "::1": false, "127.0.1.1": true} {
		t.Run(host, func(t *testing.T) {
			if !v4only && !v6 {
				t.Skip("this host has no IPv6 loopback")
			}
			addr := net.JoinHostPort(host, freePort(t))
			cfgs := make([]TCPConfig, 3)
			for r := range cfgs {
				cfgs[r] = TCPConfig{Rank: r, Size: 3, Addr: addr, Secret: testSecret}
			}
			var listening []net.Addr
			cfgs[0].Listening = func(a []net.Addr) { listening = a }
			groups, errs := joinAll(within(t), cfgs)
			noErrors(t, errs)
			defer closeGroups(groups)
			noErrors(t, onAll(groups, func(g Group) error { return Barrier(within(t), g, "b") }))
			want := 1
			if isLocalhost(host) && v6 {
				want = 2
			}
			if len(listening) != want || groups[1].(*TCPGroup).ListenAddrs() != nil {
				t.Errorf("listening on %v, want %d addresses", listening, want)
			}
			for _, a := range listening {
				if !a.(*net.TCPAddr).IP.IsLoopback() {
					t.Errorf("listening on %v, want loopback alone", a)
				}
			}
		})
	}
	for host, want := range map[string]string{"10.1.2.3": "10.1.2.3", "fe80::1%eth0": "fe80::1%eth0", "head": "", "a.localhost.": "127.0.0.1 ::1", "LOCALHOST": "127.0.0.1 ::1"} {
		if got := strings.Join(bindHosts(host), " "); got != want {
			t.Errorf("bindHosts(%q) = %q, want %q", host, got, want)
		}
	}
}

func TestListenFails(t *testing.T) {
	l := loopbackListener(t)
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for _, cfg := range []TCPConfig{
		{Size: 2, Addr: "localhost:" + port, Secret: testSecret},
		{Size: 2, Addr: "head:1", Bind: "127.0.0.1:" + port, Secret: testSecret},
	} {
		if _, err := JoinTCP(within(t), cfg); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "port "+port+" is in use") {
			t.Errorf("%v: %v", cfg, err)
		}
	}
	// 192.0.2.0/24 is for documentation: no host has it.
	if _, err := JoinTCP(within(t), TCPConfig{Size: 2, Addr: "192.0.2.1:4000", Secret: testSecret}); !errors.Is(err, syscall.EADDRNOTAVAIL) || !strings.Contains(err.Error(), "192.0.2.1") {
		t.Errorf("%v, want the address named", err)
	}
}

// Joining and closing again and again leaves neither descriptors nor goroutines.
func TestNoLeaks(t *testing.T) {
	cycle := func() {
		groups, errs := joinAll(within(t), configs(loopbackListener(t), 4))
		noErrors(t, errs)
		noErrors(t, onAll(groups, func(g Group) error { return Barrier(within(t), g, "b") }))
		closeGroups(groups)
	}
	cycle()
	fds, goroutines := countFDs(t), runtime.NumGoroutine()
	for range 100 {
		cycle()
	}
	if n := countFDs(t); n > fds {
		t.Errorf("%d descriptors, before %d", n, fds)
	}
	// A goroutine that has closed its channel may need a moment to be gone.
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > goroutines && time.Now().Before(end); {
		runtime.Gosched()
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		buf := make([]byte, 1<<16)
		t.Errorf("%d goroutines, before %d\n%s", n, goroutines, buf[:runtime.Stack(buf, true)])
	}
}

func countFDs(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(fmt.Sprint("no list of descriptors here: ", err))
	}
	return len(entries)
}
