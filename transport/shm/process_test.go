package shm

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"moerail/transport"
)

// The tests of this file run the test binary again as another process, told by
// this variable what to do. It ends when its standard input does.
const childRole = "MOERAIL_SHM_TEST_ROLE"

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
	numSlots  = 16
	streamLen = 3000
)

func pattern(b []byte, seq uint32) {
	for i := 0; i+4 <= len(b); i += 4 {
		binary.LittleEndian.PutUint32(b[i:], seq*2654435761+uint32(i))
	}
}

// card is one line that lets the other process reach a side.
func card(d transport.Domain, r transport.Region) string {
	return hex.EncodeToString(d.Addr()) + " " + hex.EncodeToString(r.RemoteKey())
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
	s.remote, err = s.d.Import(s.peer, k, numSlots*slotBytes)
	return err
}

func child(role string) error {
	p, err := New(Config{})
	if err != nil {
		return err
	}
	dom, err := p.Open("shm0", transport.DomainConfig{})
	if err != nil {
		return err
	}
	m, err := p.Alloc(numSlots * slotBytes)
	if err != nil {
		return err
	}
	r, err := dom.Register(m, transport.AccessAll)
	if err != nil {
		return err
	}
	fmt.Println(card(dom, r))
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	go func() {
		io.Copy(io.Discard, in)
		os.Exit(0) // the parent has gone
	}()
	s := &side{prov: p, d: dom.(*domain), mem: m, reg: r}
	if err := s.meetCard(line); err != nil {
		return err
	}
	switch role {
	case "stream":
		return s.stream(streamLen)
	case "flood":
		return s.flood()
	case "idle":
		select {}
	case "one":
		s.d.Post([]transport.WorkRequest{s.wr(transport.OpWriteImm, 0, 0, 8)})
		select {}
	}
	return fmt.Errorf("unknown role %q", role)
}

// stream sends n immediates, each with its own payload; the other side answers
// each with the same immediate once it has checked it.
func (s *side) stream(n uint32) error {
	out := make([]transport.Completion, 64)
	acked := uint32(0)
	for seq := uint32(1); acked < n; {
		for seq <= n && seq-acked <= numSlots {
			off := uint64(seq%numSlots) * slotBytes
			size := uint64(4 + seq*52%slotBytes&^3)
			pattern(s.mem.Host[off:off+size], seq)
			wr := s.wr(transport.OpWriteImm, off, off, size)
			wr.Imm = transport.Imm(seq)
			if k, err := s.d.Post([]transport.WorkRequest{wr}); k != 1 {
				return err
			}
			seq++
		}
		k, err := s.d.Poll(out)
		if err != nil {
			return err
		}
		for _, c := range out[:k] {
			if c.Status != transport.StatusOK {
				return fmt.Errorf("completion %+v", c)
			}
			if c.Op == transport.OpImm {
				acked++
				if uint32(c.Imm) != acked {
					return fmt.Errorf("acknowledged %d, want %d", c.Imm, acked)
				}
			}
		}
		if k == 0 {
			runtime.Gosched()
		}
	}
	return nil
}

func (s *side) flood() error {
	out := make([]transport.Completion, 64)
	wrs := []transport.WorkRequest{s.wr(transport.OpWriteImm, 0, 0, slotBytes), s.wr(transport.OpSend, 0, 0, 5000)}
	for {
		if _, err := s.d.Post(wrs); err != nil && err != transport.ErrAgain {
			return err
		}
		s.d.Poll(out)
		runtime.Gosched()
	}
}

// start runs a child and has s meet it.
func (s *side) start(role string) (c *exec.Cmd, addr transport.Address, in io.Closer) {
	s.t.Helper()
	c = exec.Command(os.Args[0])
	c.Env = append(os.Environ(), childRole+"="+role)
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
	s.t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		s.t.Fatal(err)
	}
	fmt.Fprintln(stdin, card(s.d, s.reg))
	if err := s.meetCard(line); err != nil {
		s.t.Fatal(err)
	}
	hexAddr, _, _ := strings.Cut(line, " ")
	addr, _ = hex.DecodeString(hexAddr)
	return c, addr, stdin
}

func TestTwoProcesses(t *testing.T) {
	s := newSide(t, transport.DomainConfig{}, numSlots*slotBytes)
	c, _, in := s.start("stream")
	defer in.Close()
	out := make([]transport.Completion, 64)
	want := make([]byte, slotBytes)
	limit := time.Now().Add(20 * time.Second)
	for seq := uint32(0); seq < streamLen; {
		if time.Now().After(limit) {
			t.Fatalf("only %d of %d arrived", seq, streamLen)
		}
		k, err := s.d.Poll(out)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range out[:k] {
			if c.Op != transport.OpImm {
				continue
			}
			seq++
			off := uint64(seq%numSlots) * slotBytes
			size := uint64(4 + seq*52%slotBytes&^3)
			pattern(want[:size], seq)
			if c.Peer != s.peer || uint32(c.Imm) != seq || c.Bytes != size || string(s.mem.Host[off:off+size]) != string(want[:size]) {
				t.Fatalf("arrival %d: %+v, want %d bytes, or the payload differs", seq, c, size)
			}
			s.post(transport.WorkRequest{Op: transport.OpWriteImm, Peer: s.peer, Local: transport.NoKey, Remote: transport.NoRemote, Imm: c.Imm})
		}
		if k == 0 {
			runtime.Gosched()
		}
	}
	if err := c.Wait(); err != nil {
		t.Fatal("child:", err)
	}
}

func TestKilledPeerIsLostWithinASecond(t *testing.T) {
	s := newSide(t, transport.DomainConfig{MaxSend: 8192}, numSlots*slotBytes)
	other := newSide(t, transport.DomainConfig{}, 4096)
	s2 := newSide(t, transport.DomainConfig{}, 4096)
	s2.meet(other)
	c, addr, in := s.start("flood")
	defer in.Close()
	out := make([]transport.Completion, 64)
	// Traffic both ways, with more immediates under way than a lane holds: the
	// child polls, so some of them wait here when it dies.
	imm := transport.WorkRequest{Op: transport.OpWriteImm, Peer: s.peer, Local: transport.NoKey, Remote: transport.NoRemote}
	burst := make([]transport.WorkRequest, 3*immSlots)
	for i := range burst {
		burst[i] = imm
	}
	posted, ended, lost, arrived := 0, 0, 0, 0
	step := func() {
		k, err := s.d.Poll(out)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range out[:k] {
			switch {
			case c.Op == transport.OpImm:
				arrived++
			case c.Status == transport.StatusPeerLost:
				ended++
				lost++
			case c.Status == transport.StatusOK:
				ended++
			default:
				t.Fatalf("%+v", c)
			}
		}
		if k == 0 {
			runtime.Gosched()
		}
	}
	for limit := time.Now().Add(10 * time.Second); arrived < 2000; step() {
		if time.Now().After(limit) {
			t.Fatalf("%d arrived", arrived)
		}
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	n, err := s.d.Post(burst)
	if n == 0 {
		t.Fatal(err)
	}
	posted += n
	for lost == 0 || ended < posted {
		if time.Since(killed) > time.Second {
			t.Fatalf("1 s after the kill: %d posted, %d ended, %d of them lost", posted, ended, lost)
		}
		if ended == posted {
			s.post(imm)
			posted++
		}
		step()
	}
	c.Wait()
	if _, err := s.d.Import(s.peer, s.reg.RemoteKey(), numSlots*slotBytes); err == nil {
		t.Error("import from a dead peer succeeded")
	}
	if err := s.d.RemovePeer(s.peer); err != nil {
		t.Error(err)
	}
	if _, err := s.d.AddPeer(addr); !errors.Is(err, transport.ErrPeerLost) {
		t.Errorf("adding the dead peer again: %v", err)
	}
	// Its former life does not come back with the next process.
	_, addr2, in2 := s.start("idle")
	defer in2.Close()
	if string(addr) == string(addr2) {
		t.Error("a restarted peer has its former address")
	}
	s2.post(s2.wr(transport.OpWriteImm, 0, 0, 8))
	s2.next()
	other.next()
	if b, err := os.ReadFile("/proc/net/unix"); err == nil {
		if id, _ := decodeAddress(addr); strings.Contains(string(b), id.socketName()) {
			t.Error("the dead peer's socket is still there")
		}
	}
}

// An owner that does not poll is roused by what another process sends.
func TestAnotherProcessWakes(t *testing.T) {
	s := newSide(t, transport.DomainConfig{}, numSlots*slotBytes)
	woken := make(chan struct{}, 1)
	s.d.SetWake(func() {
		select {
		case woken <- struct{}{}:
		default:
		}
	})
	_, _, in := s.start("one")
	defer in.Close()
	select {
	case <-woken:
	case <-time.After(5 * time.Second):
		t.Fatal("not roused within 5 s")
	}
	if c := s.next(); c.Op != transport.OpImm {
		t.Fatalf("%+v", c)
	}
}
