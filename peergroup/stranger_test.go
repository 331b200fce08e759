package peergroup

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// dialRaw connects to rank 0 without joining.
func dialRaw(t *testing.T, cfg TCPConfig) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", cfg.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c
}

// wantClosed reads until rank 0 has closed the connection; our own deadline
// passing is a failure.
func wantClosed(t *testing.T, name string, c net.Conn) {
	t.Helper()
	_, err := io.Copy(io.Discard, c)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("%s: the connection is still open", name)
	}
}

// What strangers say is refused, and the job comes together all the same.
func TestStrangers(t *testing.T) {
	cfgs, finish := unfinished(t, 3)
	h := hello{rank: 2, size: 3}
	good := h.append(newFrame(kindHello, helloBytes, helloBytes))
	huge := newFrame(kindHello, 0, 0)
	binary.LittleEndian.PutUint32(huge[8:], 1<<32-1)
	otherVersion := bytes.Clone(good)
	otherVersion[4] = 99
	strangers := map[string][]byte{
		"HTTP":          []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"huge":          huge,
		"other version": otherVersion,
		"other kind":    newFrame(kindLeave, 0, 0),
		"short hello":   append(newFrame(kindHello, 3, 3), 1, 2, 3),
		"no proof":      append(bytes.Clone(good), newFrame(kindContribute, 0, 0)...),
		"empty proof":   append(bytes.Clone(good), newFrame(kindProof, 0, 0)...),
		"zero proof":    append(append(bytes.Clone(good), newFrame(kindProof, macBytes, macBytes)...), make([]byte, macBytes)...),
	}
	for name, said := range strangers {
		c := dialRaw(t, cfgs[0])
		c.Write(said)
		wantClosed(t, name, c)
	}
	if s := finish(); s.Refused != uint64(len(strangers)) {
		t.Errorf("%+v, want %d refused", s, len(strangers))
	}
}

func TestOtherVersionIsToldOurs(t *testing.T) {
	said := (&hello{}).append(newFrame(kindHello, helloBytes, helloBytes))
	said[4] = frameVersion + 1
	var out bytes.Buffer
	if _, _, err := admit(rw{bytes.NewReader(said), &out}, 2, testSecret); err == nil {
		t.Fatal("another version was admitted")
	}
	_, err := readAnswer(&out, &TCPConfig{Rank: 1, Size: 2}, kindChallenge, nonceBytes)
	wantRefused(t, err, "version 1")
}

type rw struct {
	io.Reader
	io.Writer
}

// A connection that says nothing, or stops in the middle, is closed in time.
func TestSilentConnections(t *testing.T) {
	cfgs := configs(loopbackListener(t), 2)
	cfgs[0].HandshakeTimeout = 100 * time.Millisecond
	joined := make(chan Group, 1)
	go func() {
		g, err := JoinTCP(within(t), cfgs[0])
		if err != nil {
			t.Error(err)
		}
		joined <- g
	}()
	for _, said := range []string{"", "MRP", string((&hello{size: 2}).append(newFrame(kindHello, helloBytes, helloBytes)))} {
		c := dialRaw(t, cfgs[0])
		c.Write([]byte(said))
		wantClosed(t, said, c)
	}
	g1, err := JoinTCP(within(t), cfgs[1])
	g0 := <-joined
	if err != nil || g0 == nil {
		t.Fatal(err)
	}
	if s := g0.(*TCPGroup).Stats(); s.Dropped != 3 {
		t.Errorf("%+v, want 3 dropped", s)
	}
	closeGroups([]Group{g0, g1})
}

// More silent connections than are let in at a time do not keep the ranks out.
func TestCrowd(t *testing.T) {
	cfgs, finish := unfinished(t, 2)
	const more = 10
	var crowd []net.Conn
	for range extraUnproved + 2 + more {
		crowd = append(crowd, dialRaw(t, cfgs[0]))
	}
	wantClosed(t, "the oldest", crowd[0])
	if s := finish(); s.Dropped < more {
		t.Errorf("%+v, want at least %d dropped", s, more)
	}
}

// recorder keeps what passes.
type recorder struct {
	net.Conn
	sent bytes.Buffer
}

func (r *recorder) Write(b []byte) (int, error) {
	r.sent.Write(b)
	return r.Conn.Write(b)
}

// handshake runs both sides over a pipe and returns what rank k sent.
func handshake(memberSecret, hubSecret []byte) (sent []byte, memberErr, hubErr error) {
	a, b := net.Pipe()
	r := &recorder{Conn: a}
	done := make(chan error, 1)
	go func() {
		_, welcome, err := admit(b, 4, hubSecret)
		if err == nil {
			b.Write(welcome)
		}
		b.Close()
		done <- err
	}()
	memberErr = askToJoin(r, &TCPConfig{Rank: 1, Size: 4, Addr: "hub", Secret: memberSecret}, [instanceBytes]byte{1})
	a.Close()
	return r.sent.Bytes(), memberErr, <-done
}

func TestReplayIsRefused(t *testing.T) {
	sent, memberErr, hubErr := handshake(testSecret, testSecret)
	if memberErr != nil || hubErr != nil {
		t.Fatal(memberErr, hubErr)
	}
	if _, _, err := admit(rw{bytes.NewReader(sent), io.Discard}, 4, testSecret); err != ErrSecret {
		t.Errorf("replayed: %v, want ErrSecret", err)
	}
}

// An impostor at rank 0's address who sends the rank's own proof back, or
// nothing that he could not make up, is found out.
func TestImpostorRankZero(t *testing.T) {
	for _, reflect := range []bool{true, false} {
		a, b := net.Pipe()
		go func() {
			defer b.Close()
			readFrame(b, maxHandshakeBody)
			b.Write(append(newFrame(kindChallenge, nonceBytes, nonceBytes), make([]byte, nonceBytes)...))
			_, mac, _ := readFrame(b, maxHandshakeBody)
			if !reflect {
				clear(mac)
			}
			b.Write(append(newFrame(kindWelcome, macBytes, macBytes), mac...))
		}()
		err := askToJoin(a, &TCPConfig{Rank: 1, Size: 4, Addr: "hub", Secret: testSecret}, [instanceBytes]byte{})
		if !errors.Is(err, ErrSecret) || !strings.Contains(err.Error(), "does not have the secret") {
			t.Errorf("reflect %v: %v", reflect, err)
		}
		a.Close()
	}
}

func TestProofCoversEveryField(t *testing.T) {
	base := hello{rank: 1, size: 2}
	nonce := make([]byte, nonceBytes)
	seen := map[string]string{}
	add := func(name string, h hello, secret []byte, label string, nonce []byte) {
		mac := string(h.proof(secret, label, nonce))
		if old, ok := seen[mac]; ok {
			t.Errorf("%s has the proof of %s", name, old)
		}
		seen[mac] = name
	}
	add("base", base, testSecret, labelMember, nonce)
	add("label", base, testSecret, labelHub, nonce)
	add("secret", base, testSecret[1:], labelMember, nonce)
	h := base
	h.rank = 0
	add("rank", h, testSecret, labelMember, nonce)
	h = base
	h.size = 3
	add("size", h, testSecret, labelMember, nonce)
	h = base
	h.instance[15] = 1
	add("instance", h, testSecret, labelMember, nonce)
	h = base
	h.nonce[31] = 1
	add("nonce of rank k", h, testSecret, labelMember, nonce)
	add("nonce of rank 0", base, testSecret, labelMember, append(nonce[:31:31], 1))
}

// A rank that breaks the protocol after it has joined is lost, and no more than
// that.
func TestHostileRank(t *testing.T) {
	again := encodeContribute(1<<20, "again", nil)
	for name, parts := range map[string][][]byte{
		"garbage":        {[]byte("this is no frame at all.")},
		"unknown kind":   {newFrame(200, 0, 0)},
		"hub's kind":     {newFrame(kindBlob, 0, 0)},
		"long key":       {append(newFrame(kindContribute, 6, 6), 0, 0, 0, 0, 0xff, 0xff)},
		"id twice":       append(again, again...),
		"huge":           {{'M', 'R', 'P', 'G', frameVersion, byte(kindContribute), 0, 0, 0xff, 0xff, 0xff, 0xff}},
		"short withdraw": {newFrame(kindWithdraw, 0, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			groups := newTCP(t, 3)
			groups[1].(*TCPGroup).link.send(parts)
			rest := []Group{groups[0], groups[2]}
			for _, err := range onAll(rest, func(g Group) error { return Barrier(within(t), g, "b") }) {
				var lost *LostError
				if !errors.As(err, &lost) || lost.Rank != 1 || lost.Reason != LossProtocol {
					t.Errorf("%v, want rank 1 lost", err)
				}
			}
		})
	}
}
