//go:build verbs && cgo && linux

package verbs

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"moerail/internal/ibv"
	"moerail/transport"
)

// The tests of this file run the test binary again as another process, told by
// these variables what to do, and on which NIC. It ends when its standard input
// does.
const (
	childRole = "MOERAIL_VERBS_TEST_ROLE"
	childNIC  = "MOERAIL_VERBS_TEST_NIC"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		if err := child(role); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const (
	slotBytes = 16 << 10
	numSlots  = 8
	streamLen = 400
	sideBytes = 2 * numSlots * slotBytes // one half to send from, one to receive in
)

func pattern(b []byte, seq uint32) {
	for i := 0; i+4 <= len(b); i += 4 {
		binary.LittleEndian.PutUint32(b[i:], seq*2654435761+uint32(i))
	}
}

// card is one line that lets the other process reach a side.
func (s *side) card() string {
	return hex.EncodeToString(s.d.Addr()) + " " + hex.EncodeToString(s.reg.RemoteKey())
}

func (s *side) meetCard(line string) error {
	addr, key, _ := strings.Cut(strings.TrimSpace(line), " ")
	a, err := hex.DecodeString(addr)
	if err != nil {
		return err
	}
	k, err := hex.DecodeString(key)
	if err != nil {
		return err
	}
	if s.peer, err = s.d.AddPeer(a); err != nil {
		return err
	}
	s.remote, err = s.d.Import(s.peer, k, sideBytes)
	return err
}

func child(role string) error {
	nic, err := strconv.Atoi(os.Getenv(childNIC))
	if err != nil {
		return err
	}
	p, err := New(DefaultConfig())
	if err != nil {
		return err
	}
	x, err := p.Open(p.nics[nic].Name, transport.DomainConfig{})
	if err != nil {
		return err
	}
	s := &side{p: p, d: x.(*domain)}
	if s.mem, err = p.Alloc(sideBytes); err != nil {
		return err
	}
	if s.reg, err = s.d.Register(s.mem, transport.AccessAll); err != nil {
		return err
	}
	fmt.Println(s.card())
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	gone := make(chan struct{})
	go func() {
		io.Copy(io.Discard, in)
		close(gone) // the parent is done with us, or dead
	}()
	if err := s.meetCard(line); err != nil {
		return err
	}
	if role == "stream" {
		if err := s.trade(streamLen); err != nil {
			return err
		}
	}
	for { // "idle": answer handshakes and take what comes
		select {
		case <-gone:
			return s.d.Close()
		default:
		}
		if s.poll(); s.err != nil {
			return s.err
		}
		s.imms, s.ends = s.imms[:0], s.ends[:0]
	}
}

// trade writes n payloads to the other process and takes as many from it, at
// once. Each is acknowledged by an empty write with the immediate's top bit set,
// so that no slot is written again before it has been looked at.
func (s *side) trade(n uint32) error {
	const half = numSlots * slotBytes
	want := make([]byte, slotBytes)
	sent, acked, got, ended, posted := uint32(0), uint32(0), uint32(0), 0, 0
	size := func(seq uint32) uint64 { return uint64(4 + seq*52%slotBytes&^3) }
	post := func(wr transport.WorkRequest) error {
		for {
			k, err := s.d.Post([]transport.WorkRequest{wr})
			if k == 1 {
				posted++
				return nil
			}
			if !errors.Is(err, transport.ErrAgain) {
				return err
			}
			s.poll()
		}
	}
	for limit := time.Now().Add(patience); acked < n || got < n || ended < posted; {
		if time.Now().After(limit) {
			return fmt.Errorf("sent %d, acknowledged %d, got %d, ended %d of %d within %v", sent, acked, got, ended, posted, patience)
		}
		for sent < n && sent-acked < numSlots {
			off := uint64(sent%numSlots) * slotBytes
			pattern(s.mem.Host[off:off+size(sent)], sent)
			wr := s.wr(transport.OpWriteImm, off, size(sent))
			wr.RemoteOff, wr.Imm = half+off, transport.Imm(sent)
			if err := post(wr); err != nil {
				return err
			}
			sent++
		}
		if s.poll(); s.err != nil {
			return s.err
		}
		for _, c := range s.ends {
			if c.Status != transport.StatusOK {
				return fmt.Errorf("%+v: %s", c, VendorText(c.Vendor))
			}
			ended++
		}
		imms := s.imms
		s.ends, s.imms = s.ends[:0], nil
		for _, c := range imms {
			if c.Imm>>31 == 1 {
				acked++
				continue
			}
			seq := uint32(c.Imm)
			off := half + uint64(seq%numSlots)*slotBytes
			pattern(want[:size(seq)], seq)
			if c.Peer != s.peer || c.Bytes != size(seq) || string(s.mem.Host[off:off+size(seq)]) != string(want[:size(seq)]) {
				return fmt.Errorf("arrival %d: %+v, want %d bytes of peer %d, or the payload differs", got, c, size(seq), s.peer)
			}
			got++
			ack := transport.WorkRequest{Op: transport.OpWriteImm, Peer: s.peer, Local: transport.NoKey, Remote: transport.NoRemote, Imm: 1<<31 | c.Imm}
			if err := post(ack); err != nil {
				return err
			}
		}
	}
	return nil
}

// kid is another process with a side.
type kid struct {
	cmd   *exec.Cmd
	stdin io.Closer
	addr  transport.Address
	ended chan error
}

// start runs another process on a NIC and introduces s and it to each other.
func (s *side) start(role string, nic int) *kid {
	s.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	c := exec.Command(exe)
	c.Env = append(os.Environ(), childRole+"="+role, childNIC+"="+strconv.Itoa(nic))
	c.Stderr = os.Stderr
	stdin, err := c.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		s.t.Fatal(err)
	}
	k := &kid{cmd: c, stdin: stdin, ended: make(chan error, 1)}
	s.t.Cleanup(func() { c.Process.Kill(); stdin.Close() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		s.t.Fatal(err)
	}
	go func() { k.ended <- c.Wait() }()
	fmt.Fprintln(stdin, s.card())
	if err := s.meetCard(line); err != nil {
		s.t.Fatal(err)
	}
	hexAddr, _, _ := strings.Cut(line, " ")
	k.addr, _ = hex.DecodeString(hexAddr)
	return k
}

func (k *kid) wait(t *testing.T) {
	t.Helper()
	k.stdin.Close()
	select {
	case err := <-k.ended:
		if err != nil {
			t.Error("child:", err)
		}
	case <-time.After(patience):
		t.Error("the child did not end")
	}
}

func TestProcesses_RDMA(t *testing.T) {
	p := needDevices(t, DefaultConfig())
	last := len(p.nics) - 1
	for _, nic := range []int{last, 0} { // another device, then the same
		s := newSide(t, p, 0, transport.DomainConfig{}, sideBytes)
		k := s.start("stream", nic)
		if err := s.trade(streamLen); err != nil {
			t.Fatalf("to a process on %s: %v", p.nics[nic].Name, err)
		}
		k.wait(t)
	}
}

// A process that is killed: what is under way ends as lost with the device's
// status, its restart at the same place is another peer, and the handle of its
// former life leads nowhere.
func TestKilledAndRestarted_RDMA(t *testing.T) {
	p := needDevices(t, DefaultConfig())
	last := len(p.nics) - 1
	s := newSide(t, p, 0, transport.DomainConfig{}, sideBytes)
	k := s.start("idle", last)
	s.post(s.wr(transport.OpWriteImm, 0, 8))
	if c := s.end(); c.Status != transport.StatusOK {
		t.Fatalf("before the kill: %+v: %s", c, VendorText(c.Vendor))
	}
	if err := k.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-k.ended
	killed := time.Now()
	const n = 20
	for range n {
		s.post(s.wr(transport.OpWriteImm, 0, 8))
	}
	for i := range n {
		c := s.end()
		if c.Status != transport.StatusPeerLost || i == 0 && ibv.WCStatus(c.Vendor>>24) != ibv.WCRetryExceeded {
			t.Fatalf("request %d after the kill ended as %+v: %s", i, c, VendorText(c.Vendor))
		}
	}
	t.Logf("known to be lost %v after the kill", time.Since(killed))
	old := s.wr(transport.OpWrite, 0, 8)
	_, err := s.d.Post([]transport.WorkRequest{old})
	if !errors.Is(err, transport.ErrPeerLost) || !strings.Contains(err.Error(), p.nics[0].device+" port 1") {
		t.Errorf("a post to the killed peer: %v", err)
	}
	again := s.start("stream", last)
	if string(again.addr) == string(k.addr) {
		t.Fatal("the restarted process has its former address")
	}
	if err := s.trade(streamLen); err != nil {
		t.Fatal(err)
	}
	if n, err := s.d.Post([]transport.WorkRequest{old}); err == nil {
		if c := s.end(); n != 1 || c.Status == transport.StatusOK {
			t.Errorf("a write to the former life: %d, %+v", n, c)
		}
	}
	again.wait(t)
}

// protodown sets the port state of a Soft-RoCE device of the VM.
func protodown(t *testing.T, device, to string) {
	t.Helper()
	ifname := strings.Replace(device, "rxe", "roce", 1)
	if out, err := exec.Command("ip", "link", "set", ifname, "protodown", to).CombinedOutput(); err != nil {
		t.Fatalf("ip link set %s protodown %s: %v: %s", ifname, to, err, out)
	}
}

func TestLinkDownAndUp_RDMA(t *testing.T) {
	p := needDevices(t, DefaultConfig())
	if os.Getenv("RXE_VM") == "" {
		t.Skip("not in the VM (RXE_VM): taking down links of a real machine is not for tests")
	}
	last := len(p.nics) - 1
	a, b := newSide(t, p, 0, transport.DomainConfig{}, 1<<20), newSide(t, p, last, transport.DomainConfig{}, 1<<20)
	a.meet(b)
	b.meet(a)
	a.works(b)
	b.works(a)
	for range 2 {
		for range 8 {
			a.post(a.wr(transport.OpWrite, 0, 64<<10))
		}
		a.poll()
		protodown(t, p.nics[0].device, "on")
		t.Cleanup(func() { protodown(t, p.nics[0].device, "off") })
		var refused error
		until(t, "a post that is refused", func() bool {
			_, refused = a.d.Post([]transport.WorkRequest{a.wr(transport.OpWrite, 0, 8)})
			return refused != nil && !errors.Is(refused, transport.ErrAgain)
		}, a, b)
		if !errors.Is(refused, transport.ErrPeerLost) || !strings.Contains(refused.Error(), p.nics[0].device+" port 1") {
			t.Fatalf("a post while the link is down: %v", refused)
		}
		t.Logf("refused with: %v", refused)
		protodown(t, p.nics[0].device, "off")
		until(t, "a post that is taken", func() bool { return a.d.sendable(a.link()) == nil && b.d.sendable(b.link()) == nil }, a, b)
		until(t, "the end of what was under way", func() bool { return len(a.d.ops.free) == len(a.d.ops.all) }, a, b)
		a.ends = nil
		for try := 0; ; try++ { // what failed may still be on its way to being noticed
			a.post(a.wr(transport.OpWriteImm, 0, 8))
			c := a.end(b)
			if c.Status == transport.StatusOK {
				break
			}
			if try == 20 {
				t.Fatalf("after the link came back: %+v: %s", c, VendorText(c.Vendor))
			}
			until(t, "a post that is taken", func() bool { return a.d.sendable(a.link()) == nil }, a, b)
		}
		a.works(b)
		until(t, "the way back", func() bool { return b.d.sendable(b.link()) == nil }, a, b)
		b.works(a)
		a.imms, b.imms = nil, nil
	}
}

func TestManyPeers_RDMA(t *testing.T) {
	const n = 72
	p := needDevices(t, Config{GIDIndex: -1, ImmDepth: 16, SendDepth: 8, HandshakeTimeout: patience})
	hub := newSide(t, p, 0, transport.DomainConfig{MaxSend: n, MaxRecv: 16}, 4096)
	all := []*side{hub}
	for i := range n {
		s := newSide(t, p, i%len(p.nics), transport.DomainConfig{MaxSend: 16, MaxRecv: 16}, 64)
		s.meet(hub)
		hub.meet(s)
		hub.post(hub.wr(transport.OpWriteImm, 0, 8))
		s.post(s.wr(transport.OpWriteImm, 0, 8))
		all = append(all, s)
	}
	until(t, "all immediates", func() bool {
		for _, s := range all[1:] {
			if len(s.imms) != 1 {
				return false
			}
		}
		return len(hub.imms) == n
	}, all...)
}

func TestDiscover_RDMA(t *testing.T) {
	p := needDevices(t, DefaultConfig())
	d := Discover()
	if d.Err != nil || d.Library == "" || !strings.HasPrefix(d.Version, "1.") {
		t.Fatalf("%+v", d)
	}
	for _, n := range p.nics {
		found := false
		for _, dev := range d.Devices {
			for _, port := range dev.Ports {
				found = found || dev.Name == n.device && port.Number == n.port && port.Active && port.MTU >= 256 && len(port.GIDs) > 0
			}
		}
		if !found {
			t.Errorf("%s port %d is not in %+v", n.device, n.port, d.Devices)
		}
	}
	t.Logf("%s %s: %+v", d.Library, d.Version, d.Devices[0])
}
