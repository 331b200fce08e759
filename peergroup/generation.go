package peergroup

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// Generation returns a random number that is not zero and the same on every
// rank, so that what an earlier life of the group sent can be told from what
// this one sends. It is a collective under key. Its errors are those of
// Group.AllGather, and *PeerError on a malformed contribution.
func Generation(ctx context.Context, g Group, key string) (uint32, error) {
	var mine [nonceBytes]byte
	rand.Read(mine[:])
	blobs, err := g.AllGather(ctx, "generation/"+key, mine[:])
	if err != nil {
		return 0, fmt.Errorf("peergroup: generation: %w", err)
	}
	// Every rank adds its own randomness: one that restarts from a snapshot of
	// itself cannot bring an old generation back.
	h := sha256.New()
	for r, b := range blobs {
		if len(b) != nonceBytes {
			return 0, &PeerError{Rank: r, What: "generation " + key, Detail: fmt.Sprintf("%d bytes, want %d", len(b), nonceBytes)}
		}
		h.Write(b)
	}
	sum := h.Sum(nil)
	for ; len(sum) >= 4; sum = sum[4:] {
		if v := binary.LittleEndian.Uint32(sum); v != 0 {
			return v, nil
		}
	}
	return 1, nil
}
