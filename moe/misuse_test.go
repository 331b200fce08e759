package moe

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"moerail/peergroup"
	"moerail/transport/loopback"
)

func misused(t *testing.T, ranks int, mutate func(rank int, c *Config)) []*Communicator {
	t.Helper()
	cs, err := NewLocal(t.Context(), ranks, Config{NumExperts: 4, TopK: 2, Hidden: 8, MaxTokens: 4, DType: FP32, OutDType: FP32,
		Slots: 2, Deadline: 500 * time.Millisecond}, mutate)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, c := range cs {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return cs
}

func fourTokens() Input {
	return Input{X: make([]byte, 4*8*4), IDs: []int32{0, 1, 2, 3, 0, 2, 1, 3}, NumTokens: 4}
}

// wholeRound carries out one round of a slot as a user would.
func wholeRound(c *Communicator, slot int) error {
	if _, err := c.Dispatch(slot, fourTokens()); err != nil {
		return err
	}
	return c.Combine(slot, nil, 0, make([]byte, 4*8*4), 0)
}

// TestTwoGoroutinesOnOneSlot: the slot is one goroutine's at a time. The other is
// refused, or the ranks come apart and a deadline says so; nothing else happens.
func TestTwoGoroutinesOnOneSlot(t *testing.T) {
	cs := misused(t, 2, nil)
	end := time.Now().Add(300 * time.Millisecond)
	var all sync.WaitGroup
	refused := make([]int, 4)
	for i := range refused {
		c := cs[i%2]
		all.Go(func() {
			for time.Now().Before(end) {
				err := wholeRound(c, 0)
				switch CodeOf(err) {
				case CodeBusy, CodePhaseOrder:
					refused[i]++
				case CodeDeadline, CodePeerLost:
					return
				default:
					if err != nil {
						t.Errorf("goroutine %d: %v", i, err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	if refused[0]+refused[1]+refused[2]+refused[3] == 0 {
		t.Error("no call was refused: the goroutines never met")
	}
}

// TestNothingForInput: slices that are not there, and calls that no round led to.
func TestNothingForInput(t *testing.T) {
	cs := misused(t, 1, nil)
	c := cs[0]
	for _, call := range []struct {
		name string
		err  error
		code Code
	}{
		{"no x", c.DispatchSend(0, Input{NumTokens: 1}), CodeShape},
		{"no ids", c.DispatchSend(0, Input{X: make([]byte, 32), NumTokens: 1}), CodeShape},
		{"tokens below zero", c.DispatchSend(0, Input{NumTokens: -1}), CodeShape},
		{"tokens without end", c.DispatchSend(0, Input{NumTokens: 1 << 62}), CodeTooManyTokens},
		{"a stride below zero", c.DispatchSend(0, Input{X: make([]byte, 64), IDs: make([]int32, 4), NumTokens: 2, XStride: -32}), CodeShape},
		{"a stride without end", c.DispatchSend(0, Input{X: make([]byte, 64), IDs: make([]int32, 4), NumTokens: 2, XStride: 1 << 62}), CodeShape},
		{"short weights", c.DispatchSend(0, Input{X: make([]byte, 64), IDs: make([]int32, 4), Weights: make([]float32, 3), NumTokens: 2}), CodeShape},
		{"ids of two types", c.DispatchSend(0, Input{X: make([]byte, 64), IDs: make([]int32, 4), IDs64: make([]int64, 4), NumTokens: 2}), CodeShape},
		{"a slot below zero", c.DispatchSend(-1, Input{}), CodeBusy},
		{"a slot too many", c.DispatchSend(2, Input{}), CodeBusy},
		{"a slot without end", c.CombineRecv(1<<62, nil, 0), CodeBusy},
		{"combine first", c.CombineSend(0, nil, 0), CodePhaseOrder},
		{"out first", c.CombineRecv(0, nil, 0), CodePhaseOrder},
	} {
		if CodeOf(call.err) != call.code {
			t.Errorf("%s: %v, want %s", call.name, call.err, call.code)
		}
	}
	if _, err := c.DispatchRecv(0); CodeOf(err) != CodePhaseOrder {
		t.Errorf("receive first: %v", err)
	}
	if _, err := c.Dispatch(0, fourTokens()); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"short y": c.CombineSend(0, make([]byte, 4), 0), "a bad y stride": c.CombineSend(0, make([]byte, 4096), 1),
		"a y stride below zero": c.CombineSend(0, make([]byte, 4096), -32),
	} {
		if CodeOf(err) != CodeShape {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := c.CombineSend(0, nil, 0); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"no out": c.CombineRecv(0, nil, 0), "an out stride below zero": c.CombineRecv(0, make([]byte, 4096), -32),
		"an out stride without end": c.CombineRecvAdd(0, make([]byte, 4096), 1<<62),
	} {
		if CodeOf(err) != CodeShape {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := c.CombineRecv(0, make([]byte, 4*8*4), 0); err != nil {
		t.Error(err)
	}
	if err := wholeRound(c, 0); err != nil {
		t.Errorf("the next round: %v", err)
	}
}

// TestEveryCallAfterClose: each answers with code closed, and none looks at memory
// that is gone.
func TestEveryCallAfterClose(t *testing.T) {
	cs := misused(t, 2, nil)
	for _, c := range cs {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	c := cs[0]
	_, recv := c.DispatchRecv(0)
	for what, err := range map[string]error{
		"DispatchSend": c.DispatchSend(0, fourTokens()), "DispatchRecv": recv, "CombineSend": c.CombineSend(0, nil, 0),
		"CombineRecv": c.CombineRecv(0, nil, 0), "CombineRecvAdd": c.CombineRecvAdd(0, nil, 0), "Abort": c.Abort(0),
		"Barrier": c.Barrier(t.Context()), "SetPlacement": c.SetPlacement(t.Context(), [][]int32{{0, 1}, {2, 3}}),
	} {
		if CodeOf(err) != CodeClosed {
			t.Errorf("%s: %v", what, err)
		}
	}
	if c.Rank() != 0 || c.Ranks() != 2 || c.Outstanding() != 0 || len(c.Paths()) != 2 || len(c.LocalExperts()) != 2 {
		t.Error("what stays known is lost")
	}
	c.Stats()
	c.SlotWire(0)
}

// TestContextsOfNew: one rank's context ends before or while the ranks meet. All
// return, with an error each.
func TestContextsOfNew(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, after := range []time.Duration{0, time.Microsecond, 100 * time.Microsecond, time.Millisecond, 5 * time.Millisecond} {
		start := time.Now()
		var mu sync.Mutex
		var stops []context.CancelFunc
		// NewLocal has one context for all; a rank of its own is one that New gets an
		// expired context for.
		groups := newGroups(t, 3)
		var all sync.WaitGroup
		errs := make([]error, 3)
		for r := range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			if r == 1 {
				if after == 0 {
					cancel()
				} else {
					time.AfterFunc(after, cancel)
				}
			}
			mu.Lock()
			stops = append(stops, cancel)
			mu.Unlock()
			all.Go(func() {
				var c *Communicator
				if c, errs[r] = New(ctx, groups(r)); errs[r] == nil {
					defer c.Close()
				}
			})
		}
		all.Wait()
		for _, stop := range stops {
			stop()
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("after %v: it took %v", after, took)
		}
		if after == 0 {
			for r, err := range errs {
				if err == nil || r == 1 && !errors.Is(err, context.Canceled) || r != 1 && !strings.Contains(fmt.Sprint(err), "rank 1") {
					t.Errorf("after %v, rank %d: %v", after, r, err)
				}
			}
		}
	}
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			buf := make([]byte, 1<<16)
			t.Fatalf("%d goroutines, %d before\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
	}
}

// newGroups makes a job of its own; the result is rank r's configuration.
func newGroups(t *testing.T, ranks int) func(r int) Config {
	t.Helper()
	fabric, err := loopback.New(loopback.Config{})
	if err != nil {
		t.Fatal(err)
	}
	groups := peergroup.NewLocal(ranks)
	t.Cleanup(func() {
		for _, g := range groups {
			g.Close()
		}
	})
	return func(r int) Config {
		return Config{Group: groups[r], Provider: fabric.Process(fmt.Sprint("rank", r), "host"), NICs: []string{"lo0"},
			NumExperts: 4, TopK: 2, Hidden: 8, MaxTokens: 4, DType: FP32, OutDType: FP32,
			SetupDeadline: 500 * time.Millisecond, Deadline: 500 * time.Millisecond}
	}
}
