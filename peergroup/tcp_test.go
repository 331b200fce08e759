package peergroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

var testSecret = []byte("a secret of this test, 32 bytes.")

// within is the deadline of what should succeed: long, so that a busy machine
// does not fail the test.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// shortly is the deadline of what should fail by it.
func shortly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// loopbackListener listens on a free port of 127.0.0.1.
func loopbackListener(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// configs gives the configuration of every rank of a job whose rank 0 listens
// on l.
func configs(l net.Listener, size int) []TCPConfig {
	cfgs := make([]TCPConfig, size)
	for r := range cfgs {
		cfgs[r] = TCPConfig{Rank: r, Size: size, Addr: l.Addr().String(), Secret: testSecret}
	}
	cfgs[0].Listener = l
	return cfgs
}

// joinAll joins all of cfgs at once.
func joinAll(ctx context.Context, cfgs []TCPConfig) ([]Group, []error) {
	groups, errs := make([]Group, len(cfgs)), make([]error, len(cfgs))
	var wg sync.WaitGroup
	for i := range cfgs {
		wg.Go(func() { groups[i], errs[i] = JoinTCP(ctx, cfgs[i]) })
	}
	wg.Wait()
	return groups, errs
}

// newTCP is a joined group that closes with the test.
func newTCP(t *testing.T, size int) []Group {
	t.Helper()
	groups, errs := joinAll(within(t), configs(loopbackListener(t), size))
	for r, err := range errs {
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
	}
	t.Cleanup(func() { closeGroups(groups) })
	return groups
}

func closeGroups(groups []Group) {
	var wg sync.WaitGroup
	for _, g := range groups {
		if g != nil {
			wg.Go(func() { g.Close() })
		}
	}
	wg.Wait()
}

// onAll runs f on every rank at once and returns the errors by rank.
func onAll(groups []Group, f func(g Group) error) []error {
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	for i, g := range groups {
		wg.Go(func() { errs[i] = f(g) })
	}
	wg.Wait()
	return errs
}

// bothKinds runs a test over a local group and over TCP.
func bothKinds(t *testing.T, size int, f func(t *testing.T, groups []Group)) {
	t.Run("local", func(t *testing.T) {
		groups := NewLocal(size)
		defer closeGroups(groups)
		f(t, groups)
	})
	t.Run("tcp", func(t *testing.T) { f(t, newTCP(t, size)) })
}

func noErrors(t *testing.T, errs []error) {
	t.Helper()
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

func TestAllGather(t *testing.T) {
	for _, size := range []int{1, 2, 5, 64} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			bothKinds(t, size, func(t *testing.T, groups []Group) {
				noErrors(t, onAll(groups, func(g Group) error {
					for n := range 3 {
						mine := bytes.Repeat([]byte{byte(g.Rank() + 1)}, g.Rank()*n) // rank 0 and round 0 are empty
						blobs, err := g.AllGather(within(t), "round", mine)
						if err != nil {
							return err
						}
						if len(blobs) != size {
							return fmt.Errorf("%d blobs", len(blobs))
						}
						for r, b := range blobs {
							if want := bytes.Repeat([]byte{byte(r + 1)}, r*n); !bytes.Equal(b, want) {
								return fmt.Errorf("round %d: blob of rank %d is %d bytes, want %d", n, r, len(b), len(want))
							}
							for i := range b {
								b[i] = 0xff // the caller's own: no other rank may see this
							}
						}
					}
					return nil
				}))
			})
		})
	}
}

// Many collectives under way at once, started in another order on every rank.
func TestAllGatherConcurrentKeys(t *testing.T) {
	const keys, rounds = 16, 8
	bothKinds(t, 4, func(t *testing.T, groups []Group) {
		noErrors(t, onAll(groups, func(g Group) error {
			errs := make([]error, keys)
			var wg sync.WaitGroup
			for i := range keys {
				k := (i*(2*g.Rank()+1) + g.Rank()) % keys
				wg.Go(func() {
					for n := range rounds {
						want := func(r int) string { return fmt.Sprintf("%d/%d/%d", r, k, n) }
						blobs, err := g.AllGather(within(t), fmt.Sprint("key", k), []byte(want(g.Rank())))
						if err != nil {
							errs[k] = err
							return
						}
						for r, b := range blobs {
							if string(b) != want(r) {
								errs[k] = fmt.Errorf("%q, want %q", b, want(r))
								return
							}
						}
					}
				})
			}
			wg.Wait()
			return errors.Join(errs...)
		}))
	})
}

func TestAllGatherLargestBlob(t *testing.T) {
	bothKinds(t, 3, func(t *testing.T, groups []Group) {
		noErrors(t, onAll(groups, func(g Group) error {
			blob := make([]byte, MaxBlobBytes)
			for i := range blob {
				blob[i] = byte(i>>9) + byte(g.Rank())
			}
			blobs, err := g.AllGather(within(t), strings.Repeat("k", MaxKeyBytes), blob)
			if err != nil {
				return err
			}
			for r, b := range blobs {
				if len(b) != MaxBlobBytes || b[0] != byte(r) || b[MaxBlobBytes-1] != byte((MaxBlobBytes-1)>>9&0xff)+byte(r) {
					return fmt.Errorf("blob of rank %d is wrong", r)
				}
			}
			return nil
		}))
	})
}

func TestAllGatherLimits(t *testing.T) {
	g := NewLocal(1)[0]
	defer g.Close()
	for name, c := range map[string]struct {
		key  string
		blob []byte
	}{
		"empty key":    {"", nil},
		"long key":     {strings.Repeat("k", MaxKeyBytes+1), nil},
		"reserved key": {joinKey, nil},
		"too much":     {"k", make([]byte, MaxBlobBytes+1)},
	} {
		_, err := g.AllGather(within(t), c.key, c.blob)
		var limit *LimitError
		if !errors.As(err, &limit) {
			t.Errorf("%s: %v, want a *LimitError", name, err)
		}
	}
	for _, n := range []int{-1, 0, MaxRanks + 1} {
		if NewLocal(n) != nil {
			t.Errorf("NewLocal(%d) is not nil", n)
		}
	}
}
