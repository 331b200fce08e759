//go:build libfabric && cgo

package efa

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"moerail/transport"
)

// The tests of this file run the test binary again, as ranks of a job: each
// prints a line that says how to reach it, gets the lines of all, works, prints
// "done", and polls on until its standard input ends.
const childJob = "MOERAIL_EFA_TEST_JOB"

func TestMain(m *testing.M) {
	if spec := os.Getenv(childJob); spec != "" {
		if err := child(spec); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	if fake.path != "" {
		os.RemoveAll(filepath.Dir(fake.path))
	}
	os.Exit(code)
}

// job is what all ranks are told.
type job struct {
	Provider string
	Ranks    int
	Rank     int
	Domains  int
	Sizes    []uint64 // mesh: a round of writes to everybody for each
	Writes   int      // stream: immediates to each other rank
	MaxSend  int
	Idle     bool // only poll
}

// card is how to reach one rank.
type card struct {
	Addr, Key []string // by domain, hex
}

const childPatience = 60 * time.Second

// member is one domain of a rank in a job.
type member struct {
	d      transport.Domain
	reg    transport.Region
	mem    transport.Memory
	peer   []transport.Peer // by rank
	remote []transport.Remote
	imms   map[transport.Imm]int
	ended  int
}

type crew struct {
	job     job
	members []*member
	out     [64]transport.Completion
	quit    chan struct{}
	check   func(m *member, imm transport.Imm) error
}

func (j *job) maxSize() uint64 {
	n := uint64(64)
	for _, s := range j.Sizes {
		n = max(n, (s+63)/64*64)
	}
	return n
}

// A region holds what is sent, then two slots for each rank.
func (j *job) regionBytes() uint64 { return j.maxSize() * uint64(1+2*j.Ranks) }
func (j *job) slot(rank, round int) uint64 {
	return j.maxSize() * uint64(1+2*rank+round%2)
}

func openCrew(j job) (*crew, card, error) {
	var mine card
	c := &crew{job: j, quit: make(chan struct{})}
	p, err := New(Config{Provider: j.Provider, NumNICs: j.Domains, ConnectTimeout: 30 * time.Second})
	if err != nil {
		return nil, mine, err
	}
	for i := range j.Domains {
		m := &member{imms: map[transport.Imm]int{}}
		if m.d, err = p.Open(p.NICs()[i].Name, transport.DomainConfig{MaxSend: j.MaxSend, MaxRecv: 8}); err != nil {
			return nil, mine, err
		}
		if m.mem, err = p.Alloc(j.regionBytes()); err != nil {
			return nil, mine, err
		}
		if m.reg, err = m.d.Register(m.mem, transport.AccessAll); err != nil {
			return nil, mine, err
		}
		mine.Addr = append(mine.Addr, hex.EncodeToString(m.d.Addr()))
		mine.Key = append(mine.Key, hex.EncodeToString(m.reg.RemoteKey()))
		c.members = append(c.members, m)
	}
	return c, mine, nil
}

func (c *crew) meet(all []card) error {
	for _, them := range all {
		for i, m := range c.members {
			a, err := hex.DecodeString(them.Addr[i])
			if err != nil {
				return err
			}
			k, err := hex.DecodeString(them.Key[i])
			if err != nil {
				return err
			}
			p, err := m.d.AddPeer(a)
			if err != nil {
				return err
			}
			r, err := m.d.Import(p, k, c.job.regionBytes())
			if err != nil {
				return err
			}
			m.peer, m.remote = append(m.peer, p), append(m.remote, r)
		}
	}
	return nil
}

// poll polls every domain once.
func (c *crew) poll() error {
	got := 0
	for _, m := range c.members {
		n, err := m.d.Poll(c.out[:])
		if err != nil {
			return err
		}
		got += n
		for _, x := range c.out[:n] {
			switch {
			case x.Status != transport.StatusOK:
				return fmt.Errorf("completion %+v", x)
			case x.Op != transport.OpImm:
				m.ended++
			default:
				m.imms[x.Imm]++
				if c.check != nil {
					if err := c.check(m, x.Imm); err != nil {
						return err
					}
				}
			}
		}
	}
	if got == 0 {
		yield()
	}
	return nil
}

// yield lets another process run: ranks outnumber cores.
func yield() {
	runtime.Gosched()
	_, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}

func (c *crew) until(what string, cond func() bool) error {
	for start := time.Now(); !cond(); {
		if err := c.poll(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if time.Since(start) > childPatience {
			return fmt.Errorf("%s: not within %v", what, childPatience)
		}
	}
	return nil
}

func (c *crew) post(m *member, wr transport.WorkRequest) error {
	for start := time.Now(); ; {
		n, err := m.d.Post([]transport.WorkRequest{wr})
		if n == 1 {
			return nil
		}
		if !errors.Is(err, transport.ErrAgain) {
			return err
		}
		if err := c.poll(); err != nil {
			return err
		}
		if time.Since(start) > childPatience {
			return fmt.Errorf("queue full for %v", childPatience)
		}
	}
}

// word is what byte 8i of a payload holds.
func word(rank, round int, i uint64) uint64 {
	return uint64(rank)<<56 ^ uint64(round)<<40 ^ i*0x9e3779b97f4a7c15
}

func fillWords(b []byte, rank, round int) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], word(rank, round, uint64(i)))
	}
}

func checkWords(b []byte, rank, round int) error {
	for i := 0; i+8 <= len(b); i += 8 {
		if got, want := binary.LittleEndian.Uint64(b[i:]), word(rank, round, uint64(i)); got != want {
			return fmt.Errorf("round %d of rank %d: byte %d of %d holds %#x, want %#x", round, rank, i, len(b), got, want)
		}
	}
	return nil
}

// mesh writes to every other rank in rounds, over every domain, and looks at each
// payload when its immediate comes.
func (c *crew) mesh() error {
	j := c.job
	c.check = func(m *member, imm transport.Imm) error {
		from, round := int(imm&0xffff), int(imm>>16)
		at := j.slot(from, round)
		return checkWords(m.mem.Host[at:at+j.Sizes[round]], from, round)
	}
	for round, size := range j.Sizes {
		for _, m := range c.members {
			fillWords(m.mem.Host[:size], j.Rank, round)
			for r := range j.Ranks {
				if r == j.Rank {
					continue
				}
				wr := transport.WorkRequest{Op: transport.OpWriteImm, Peer: m.peer[r], Local: m.reg.LKey(), Remote: m.remote[r],
					RemoteOff: j.slot(j.Rank, round), Len: size, Imm: transport.Imm(round<<16 | j.Rank)}
				if err := c.post(m, wr); err != nil {
					return err
				}
			}
		}
		err := c.until(fmt.Sprintf("round %d of %d bytes", round, size), func() bool {
			for _, m := range c.members {
				if m.ended < (round+1)*(j.Ranks-1) {
					return false
				}
				for r := range j.Ranks {
					if r != j.Rank && m.imms[transport.Imm(round<<16|r)] == 0 {
						return false
					}
				}
			}
			return true
		})
		if err != nil {
			return err
		}
	}
	for _, m := range c.members {
		for imm, n := range m.imms {
			if n != 1 {
				return fmt.Errorf("immediate %#x came %d times", imm, n)
			}
		}
	}
	return nil
}

// stream sends immediates to every other rank as fast as the queue takes them.
func (c *crew) stream() error {
	j := c.job
	for k := range j.Writes {
		for _, m := range c.members {
			for r := range j.Ranks {
				if r == j.Rank {
					continue
				}
				wr := transport.WorkRequest{Op: transport.OpWriteImm, Peer: m.peer[r], Local: m.reg.LKey(), Remote: m.remote[r],
					RemoteOff: j.slot(j.Rank, 0), Len: uint64(k % 64), Imm: transport.Imm(j.Rank<<20 | k)}
				if err := c.post(m, wr); err != nil {
					return err
				}
			}
		}
	}
	want := j.Writes * (j.Ranks - 1)
	err := c.until("stream", func() bool {
		for _, m := range c.members {
			if m.ended < want || len(m.imms) < want {
				return false
			}
		}
		return true
	})
	for _, m := range c.members {
		for imm, n := range m.imms {
			if n != 1 && err == nil {
				err = fmt.Errorf("immediate %#x came %d times", imm, n)
			}
		}
	}
	return err
}

func child(spec string) error {
	var j job
	if err := json.Unmarshal([]byte(spec), &j); err != nil {
		return err
	}
	c, mine, err := openCrew(j)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(mine); err != nil {
		return err
	}
	in := bufio.NewReader(os.Stdin)
	var all []card
	line, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(line), &all); err != nil {
		return err
	}
	if err := c.meet(all); err != nil {
		return err
	}
	go func() {
		io.Copy(io.Discard, in)
		close(c.quit)
	}()
	if len(j.Sizes) > 0 && !j.Idle {
		err = c.mesh()
	} else if j.Writes > 0 {
		err = c.stream()
	}
	if err != nil {
		return fmt.Errorf("rank %d: %w", j.Rank, err)
	}
	fmt.Println("done")
	for {
		select {
		case <-c.quit:
			for _, m := range c.members {
				m.d.Close()
			}
			return nil
		default:
			c.check = nil
			_ = c.poll() // others may go first
		}
	}
}

// process is a child seen from the test.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	err strings.Builder
}

func start(t *testing.T, j job) (*process, card) {
	t.Helper()
	spec, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), childJob+"="+string(spec))
	p.cmd.Stderr = &p.err
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(2*childPatience, func() { p.cmd.Process.Kill() })
	t.Cleanup(func() {
		timer.Stop()
		p.in.Close()
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	var c card
	line, err := p.out.ReadString('\n')
	if err == nil {
		err = json.Unmarshal([]byte(line), &c)
	}
	if err != nil {
		p.cmd.Wait()
		t.Fatalf("rank %d: %v\n%s", j.Rank, err, p.err.String())
	}
	return p, c
}

func (p *process) tell(t *testing.T, all []card) {
	t.Helper()
	if err := json.NewEncoder(p.in).Encode(all); err != nil {
		t.Fatal(err)
	}
}

// runJob runs all ranks and waits for each to be done.
func runJob(t *testing.T, j job) {
	t.Helper()
	var ps []*process
	var all []card
	for r := range j.Ranks {
		j.Rank = r
		p, c := start(t, j)
		ps, all = append(ps, p), append(all, c)
	}
	for _, p := range ps {
		p.tell(t, all)
	}
	for r, p := range ps {
		if line, err := p.out.ReadString('\n'); err != nil || line != "done\n" {
			p.cmd.Wait()
			t.Fatalf("rank %d: %q, %v\n%s", r, line, err, p.err.String())
		}
	}
	for r, p := range ps {
		p.in.Close()
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("rank %d: %v\n%s", r, err, p.err.String())
		}
	}
}

func eachProvider(t *testing.T, f func(t *testing.T, provider string)) {
	for _, s := range softwareProviders {
		t.Run(strings.ReplaceAll(s.name, ";", "+"), func(t *testing.T) { f(t, s.name) })
	}
}

func TestProcesses(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string) {
		small := []uint64{0, 8, 255, 4096, 65536, 7, 1 << 20}
		for _, c := range []struct {
			ranks, domains int
			sizes          []uint64
		}{
			{2, 1, append(small[:len(small):len(small)], 64<<20)},
			{4, 4, small},
			{8, 2, small[:5]},
			{16, 1, []uint64{0, 7168, 64, 65536}},
		} {
			if testing.Short() && c.ranks > 2 {
				continue
			}
			t.Run(fmt.Sprintf("%dx%d", c.ranks, c.domains), func(t *testing.T) {
				runJob(t, job{Provider: provider, Ranks: c.ranks, Domains: c.domains, Sizes: c.sizes})
			})
		}
	})
}

func TestProcessesTwoSlotsTenThousandWrites(t *testing.T) {
	eachProvider(t, func(t *testing.T, provider string) {
		runJob(t, job{Provider: provider, Ranks: 2, Domains: 1, Writes: 10000, MaxSend: 2})
	})
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
