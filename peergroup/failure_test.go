package peergroup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// asMissing checks that err is a *MissingError that a deadline caused.
func asMissing(t *testing.T, rank int, err error) *MissingError {
	t.Helper()
	var m *MissingError
	if !errors.As(err, &m) {
		t.Fatalf("rank %d: %v, want a *MissingError", rank, err)
	}
	if m.Rank != rank {
		t.Errorf("rank %d: the error says rank %d", rank, m.Rank)
	}
	return m
}

func TestMissingRank(t *testing.T) {
	bothKinds(t, 4, func(t *testing.T, groups []Group) {
		here := []Group{groups[0], groups[1], groups[2]}
		ctx := shortly(t)
		for r, err := range onAll(here, func(g Group) error {
			_, err := g.AllGather(ctx, "step", nil)
			return err
		}) {
			m := asMissing(t, r, err)
			if !slices.Equal(m.Missing, []int{3}) || m.Key != "step" {
				t.Errorf("rank %d: missing %v of %q: %v", r, m.Missing, m.Key, err)
			}
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "rank 3") {
				t.Errorf("rank %d: %v", r, err)
			}
		}
		// Nothing is harmed: the same key works once all come.
		noErrors(t, onAll(groups, func(g Group) error {
			blobs, err := g.AllGather(within(t), "step", []byte{byte(g.Rank())})
			for r, b := range blobs {
				if len(b) != 1 || b[0] != byte(r) {
					return fmt.Errorf("blob of rank %d is %v: an earlier call was matched", r, b)
				}
			}
			return err
		}))
	})
}

// A rank that waits under another key is named with that key.
func TestDifferentKeys(t *testing.T) {
	bothKinds(t, 3, func(t *testing.T, groups []Group) {
		ctx := shortly(t)
		errs := onAll(groups, func(g Group) error {
			key := "config"
			if g.Rank() == 1 {
				key = "weights"
			}
			return Barrier(ctx, g, key)
		})
		// The deadlines pass in any order, and who gave up first waits for
		// nothing any more: whoever reported first has the whole picture.
		var named bool
		for r, err := range errs {
			m := asMissing(t, r, err)
			other := []int{1}
			if r == 1 {
				other = []int{0, 2}
			}
			if !slices.Equal(m.Missing, other) {
				t.Errorf("rank %d: missing %v, want %v", r, m.Missing, other)
			}
			named = named || strings.Contains(err.Error(), `rank 1 waits for "barrier/weights"`) ||
				strings.Contains(err.Error(), `rank 0 waits for "barrier/config"`)
		}
		if !named {
			t.Errorf("nobody names the other key: %v", errs)
		}
	})
}

func TestCancelled(t *testing.T) {
	bothKinds(t, 2, func(t *testing.T, groups []Group) {
		ctx, cancel := context.WithCancel(context.Background())
		errs := make(chan error)
		go func() {
			_, err := groups[1].AllGather(ctx, "k", nil)
			errs <- err
		}()
		cancel()
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want it cancelled", err)
		}
	})
}

func TestDefaultTimeout(t *testing.T) {
	cfgs := configs(loopbackListener(t), 2)
	for i := range cfgs {
		cfgs[i].Timeout = 200 * time.Millisecond
	}
	groups, errs := joinAll(within(t), cfgs)
	noErrors(t, errs)
	defer closeGroups(groups)
	for r, err := range onAll(groups, func(g Group) error {
		_, err := g.AllGather(context.Background(), fmt.Sprint("key", g.Rank()), nil)
		return err
	}) {
		asMissing(t, r, err)
	}
}

// waitsFor returns when rank has a call of key in the hub.
func waitsFor(h *hub, rank int, key string) {
	for {
		h.mu.Lock()
		g := h.gathers[key]
		ok := g != nil && len(g.queue[rank]) > 0
		h.mu.Unlock()
		if ok {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func hubOf(g Group) *hub {
	switch g := g.(type) {
	case *localRank:
		return g.hub
	case *TCPGroup:
		return g.server.hub
	}
	return nil
}

// A rank closes while the others wait for it: they hear of it at once, long
// before their deadline, and so does every later call.
func TestClosedRankIsLost(t *testing.T) {
	for closing := range 3 {
		t.Run(fmt.Sprint(closing), func(t *testing.T) {
			bothKinds(t, 3, func(t *testing.T, groups []Group) {
				h := hubOf(groups[0])
				var rest []Group
				for r, g := range groups {
					if r != closing {
						rest = append(rest, g)
					}
				}
				go func() {
					for _, g := range rest {
						waitsFor(h, g.Rank(), "k")
					}
					groups[closing].Close()
				}()
				for again := range 2 {
					for i, err := range onAll(rest, func(g Group) error {
						_, err := g.AllGather(within(t), "k", nil)
						return err
					}) {
						var lost *LostError
						if !errors.As(err, &lost) || lost.Rank != closing || lost.Reason != LossClosed {
							t.Errorf("call %d of rank %d: %v, want rank %d closed", again, rest[i].Rank(), err, closing)
						}
					}
				}
				if _, err := groups[closing].AllGather(within(t), "k", nil); !errors.Is(err, ErrClosed) {
					t.Errorf("after its own Close: %v", err)
				}
			})
		})
	}
}

func TestCloseWakesOwnCalls(t *testing.T) {
	for closing := range 2 {
		bothKinds(t, 2, func(t *testing.T, groups []Group) {
			errs := make(chan error)
			for _, key := range []string{"a", "b"} {
				go func() {
					_, err := groups[closing].AllGather(within(t), key, nil)
					errs <- err
				}()
				waitsFor(hubOf(groups[0]), closing, key)
			}
			groups[closing].Close()
			groups[closing].Close()
			for range 2 {
				if err := <-errs; !errors.Is(err, ErrClosed) {
					t.Errorf("rank %d: %v, want ErrClosed", closing, err)
				}
			}
		})
	}
}

// Every order of closing, each rank straight after its last collective: nobody
// loses the answer to it, whoever goes first.
func TestCloseOrders(t *testing.T) {
	orders := permutations(4)
	bothOrders := func(t *testing.T, make4 func() []Group) {
		for _, order := range orders {
			groups := make4()
			noErrors(t, onAll(groups, func(g Group) error { return Barrier(within(t), g, "last") }))
			for _, r := range order {
				if err := groups[r].Close(); err != nil {
					t.Fatalf("order %v, rank %d: %v", order, r, err)
				}
			}
		}
		for range 20 {
			groups := make4()
			noErrors(t, onAll(groups, func(g Group) error {
				defer g.Close()
				_, err := g.AllGather(within(t), "last", make([]byte, 100<<10))
				return err
			}))
		}
	}
	t.Run("local", func(t *testing.T) { bothOrders(t, func() []Group { return NewLocal(4) }) })
	t.Run("tcp", func(t *testing.T) {
		bothOrders(t, func() []Group {
			groups, errs := joinAll(within(t), configs(loopbackListener(t), 4))
			noErrors(t, errs)
			return groups
		})
	})
}

func permutations(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for _, p := range permutations(n - 1) {
		for i := range n {
			all = append(all, slices.Insert(slices.Clone(p), i, n-1))
		}
	}
	return all
}

func TestInFlightLimit(t *testing.T) {
	groups := NewLocal(2)
	defer closeGroups(groups)
	ended := make(chan error, MaxInFlight)
	for i := range MaxInFlight {
		go func() {
			_, err := groups[0].AllGather(within(t), fmt.Sprint(i), nil)
			ended <- err
		}()
	}
	for i := range MaxInFlight {
		waitsFor(hubOf(groups[0]), 0, fmt.Sprint(i))
	}
	var limit *LimitError
	if _, err := groups[0].AllGather(within(t), "more", nil); !errors.As(err, &limit) {
		t.Errorf("%v, want a *LimitError", err)
	}
	for i := range MaxInFlight {
		if _, err := groups[1].AllGather(within(t), fmt.Sprint(i), nil); err != nil {
			t.Fatal(err)
		}
	}
	for range MaxInFlight {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	h := hubOf(groups[0])
	if len(h.gathers) != 0 || len(h.seats[0].calls) != 0 || len(h.seats[0].order) != 0 || h.seats[0].bytes != 0 {
		t.Errorf("the hub still holds %d gathers, %d calls, %d bytes", len(h.gathers), len(h.seats[0].calls), h.seats[0].bytes)
	}
}
