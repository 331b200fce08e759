// Package peergroup says who the ranks of a job are and how they agree, before
// any fabric is used: rank 0 keeps a small matching table (the hub), every rank
// hands it blobs under keys, and a key is answered on all ranks at once.
//
//	rank 0 process                                    rank k process
//	+----------------------------------------+        +----------------------+
//	| AllGather --> member --> hub <-- link <====TCP====> link <-- member <-- AllGather
//	|                           ^              |        +----------------------+
//	|    join: HMAC challenge --+-- Accept     |   a stranger is refused before
//	+----------------------------------------+    it is told anything
//
// NewLocal puts the same hub under ranks that share a process, so both kinds of
// group behave alike: a collective ends on every rank with the same blobs, or on
// none; a rank that does not come is named in a *MissingError at the deadline; a
// rank that dies or closes is named in a *LostError at once.
//
// On top of AllGather stand Agree (every rank has the same parameters), Barrier,
// Generation and AgreeImms (a range of immediates that is free on every rank).
//
// A Group may be used from any number of goroutines. Nothing here is on the path
// of a round.
//
// The secret guards who may join. Frames that follow are neither encrypted nor
// signed: who can rewrite the packets of an established TCP connection is not
// kept out.
package peergroup

import (
	"context"
	"fmt"
	"time"
)

const (
	// MaxBlobBytes bounds what one rank passes to one AllGather.
	MaxBlobBytes = 4 << 20
	// MaxKeyBytes bounds the length of a key.
	MaxKeyBytes = 256
	// MaxRanks bounds the size of a group.
	MaxRanks = 4096
	// MaxInFlight bounds the collectives that one rank has in flight at a time.
	MaxInFlight = 256
	// MaxInFlightBytes bounds the blobs of those collectives together.
	MaxInFlightBytes = 64 << 20
	// DefaultTimeout is the deadline of a call whose context has none.
	DefaultTimeout = 60 * time.Second
)

// Group is the ranks of one job, seen from one of them.
//
// All methods may be called from any goroutine.
type Group interface {
	// Rank is this rank, 0 to Size-1.
	Rank() int
	// Size is the number of ranks.
	Size() int
	// AllGather returns the blobs that all ranks passed under key, in rank
	// order. Every rank must call it; the n-th call of one rank under a key is
	// matched with the n-th call of the others, and calls under different keys
	// are independent. A call that failed counts as not made, so it can be
	// repeated.
	//
	// key has 1 to MaxKeyBytes bytes, the first of them not zero; the prefixes
	// "agree/", "barrier/", "generation/" and "imms/" are used by this package.
	// blob has at most MaxBlobBytes and is the caller's again at return. The
	// result is the caller's; no two ranks share memory.
	//
	// It fails with *MissingError when ctx ends first (DefaultTimeout applies
	// if ctx has no deadline), with *LostError when a rank died or closed, with
	// ErrClosed when this rank closed, and with *LimitError on an argument
	// outside its limits. After *LostError the group is of no more use.
	AllGather(ctx context.Context, key string, blob []byte) ([][]byte, error)
	// Close leaves the group: calls that wait here return ErrClosed, and calls
	// that wait on other ranks fail with *LostError, since nothing can complete
	// any more. It waits for no other rank longer than a second or two, and may
	// be called in any order and more than once.
	Close() error
}

// Barrier returns when every rank has called it under key. Its errors are those
// of Group.AllGather.
func Barrier(ctx context.Context, g Group, key string) error {
	_, err := g.AllGather(ctx, "barrier/"+key, nil)
	if err != nil {
		return fmt.Errorf("peergroup: barrier: %w", err)
	}
	return nil
}

// checkCall refuses a key or blob outside the limits.
func checkCall(key string, blob []byte) error {
	switch {
	case len(key) == 0 || len(key) > MaxKeyBytes:
		return &LimitError{What: "key length in bytes", Value: uint64(len(key)), Min: 1, Max: MaxKeyBytes}
	case key[0] == 0:
		return &LimitError{What: "first byte of the key", Value: 0, Min: 1, Max: 255}
	case len(blob) > MaxBlobBytes:
		return &LimitError{What: fmt.Sprintf("blob of %q in bytes", key), Value: uint64(len(blob)), Max: MaxBlobBytes}
	}
	return nil
}
