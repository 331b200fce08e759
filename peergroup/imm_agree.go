package peergroup

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"moerail/transport"
)

// maxImmTries bounds the tries of AgreeImms. Each doubles the room in which the
// rivals look, so the bound is not met but by fault.
const maxImmTries = 32

// AgreeImms takes n immediates, base to base+n-1, that are free in the space of
// every rank, and returns the same base on all. It is a collective under key; n
// must be the same everywhere.
//
// Ranks may have allocated other ranges before, in any order, and several
// groups of one process may call it on one space at the same time, under any
// keys and in any order: their ranges never meet.
//
// It fails on every rank alike with ErrImmsExhausted if no such range exists,
// with *MismatchError if n differs, and with *PeerError on a rank's fault. A
// failed call leaves nothing allocated. Other errors are those of
// Group.AllGather. The caller gives the range back with space.Free.
//
// Two rounds: all spaces are exchanged, from which every rank computes the same
// range; each takes it in its own space and tells whether it could. A rival in
// between makes somebody fail, then all undo and try again farther on.
func AgreeImms(ctx context.Context, g Group, space *ImmSpace, key string, n uint32) (transport.Imm, error) {
	what := "immediates of " + key
	for try := range maxImmTries {
		blobs, err := g.AllGather(ctx, "imms/"+key, encodeImms(space.snapshot(), n))
		if err != nil {
			return 0, fmt.Errorf("peergroup: %s: %w", what, err)
		}
		r, err := chooseImms(what, blobs, try)
		if err != nil {
			return 0, err
		}
		taken := space.tryTake(r)
		vote := []byte{0}
		if taken {
			vote[0] = 1
		}
		votes, err := g.AllGather(ctx, "imms/"+key, vote)
		all := err == nil
		for rank, v := range votes {
			if len(v) != 1 || v[0] > 1 {
				err = errors.Join(err, &PeerError{Rank: rank, What: what, Detail: "malformed vote"})
			}
			all = all && err == nil && v[0] == 1
		}
		if all {
			return transport.Imm(r.first), nil
		}
		if err != nil {
			// If rank 0 fell silent, others may count on the range: it rests.
			if taken {
				err = errors.Join(err, space.Free(transport.Imm(r.first)))
			}
			return 0, fmt.Errorf("peergroup: %s: %w", what, err)
		}
		if taken {
			space.undo(r)
		}
	}
	return 0, fmt.Errorf("peergroup: %s: no range settled in %d tries", what, maxImmTries)
}

// chooseImms computes the range from what all ranks said.
func chooseImms(what string, blobs [][]byte, try int) (immRange, error) {
	spaces := make([]immSnapshot, len(blobs))
	wants := make([][]Param, len(blobs))
	mix := sha256.New()
	var n uint32
	for rank, b := range blobs {
		s, want, err := decodeImms(b)
		if err != nil {
			return immRange{}, &PeerError{Rank: rank, What: what, Detail: err.Error()}
		}
		spaces[rank], n = s, want
		wants[rank] = []Param{{"number of immediates", fmt.Sprint(want)}}
		mix.Write(b)
	}
	if err := compareParams(what, wants); err != nil {
		return immRange{}, err
	}
	for rank, s := range spaces {
		if len(s.live) >= MaxImmRanges {
			return immRange{}, fmt.Errorf("%w: rank %d has %d ranges, allowed are %d", ErrImmsExhausted, rank, len(s.live), MaxImmRanges)
		}
	}
	// Rivals compute from other nonces, and part ways.
	random := binary.LittleEndian.Uint64(mix.Sum(nil))
	skip := random % (1 << min(try, 16)) * uint64(n)
	first, ok := findImms(spaces, uint64(n), skip)
	if !ok {
		return immRange{}, fmt.Errorf("%w: no %d in a row are free on every rank", ErrImmsExhausted, n)
	}
	return immRange{first, first + uint64(n)}, nil
}

const immNonceBytes = 16

// encodeImms says how many immediates a rank wants and what its space holds. n
// of 0 becomes this rank's fault, which reaches everybody.
func encodeImms(s immSnapshot, n uint32) []byte {
	if n == 0 {
		return encodeFault(&LimitError{What: "number of immediates", Min: 1, Max: immEnd - ReservedImms})
	}
	b := make([]byte, 1+immNonceBytes, 64+8*(len(s.live)+len(s.freed)))
	b[0] = statusOK
	rand.Read(b[1:])
	b = binary.LittleEndian.AppendUint32(b, n)
	b = binary.LittleEndian.AppendUint64(b, s.next)
	for _, ranges := range [][]immRange{s.live, s.freed} {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(ranges)))
		for _, r := range ranges {
			b = binary.LittleEndian.AppendUint32(b, uint32(r.first))
			b = binary.LittleEndian.AppendUint32(b, uint32(r.end-1))
		}
	}
	return b
}

func decodeImms(blob []byte) (s immSnapshot, n uint32, err error) {
	rest, err := openStatus(blob)
	if err != nil {
		return s, 0, err
	}
	d := decoder{b: rest}
	d.bytes(immNonceBytes)
	n = d.u32()
	s.next = d.u64()
	s.live = d.immRanges(MaxImmRanges)
	s.freed = d.immRanges(immQuarantine)
	if err := d.done(); err != nil {
		return immSnapshot{}, 0, fmt.Errorf("malformed: %w", err)
	}
	if n == 0 || s.next < ReservedImms || s.next >= immEnd {
		return immSnapshot{}, 0, fmt.Errorf("malformed: %d immediates, cursor %d", n, s.next)
	}
	return s, n, nil
}

func (d *decoder) immRanges(most int) []immRange {
	n := int(d.u16())
	if d.err == nil && (n > most || 8*n > len(d.b)) {
		d.err = fmt.Errorf("%d ranges in %d bytes, allowed are %d", n, len(d.b), most)
	}
	if d.err != nil || n == 0 {
		return nil
	}
	ranges := make([]immRange, n)
	for i := range ranges {
		ranges[i] = immRange{uint64(d.u32()), uint64(d.u32()) + 1}
		if ranges[i].first >= ranges[i].end {
			d.err = fmt.Errorf("range %d to %d", ranges[i].first, ranges[i].end-1)
			return nil
		}
	}
	return ranges
}
