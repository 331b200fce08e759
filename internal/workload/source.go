package workload

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Limits of what Open accepts.
const (
	MaxRanks   = 1 << 16
	MaxExperts = 1 << 20
	MaxTopK    = 256
	MaxZipf    = 20 // largest exponent: beyond it the popularity of experts underflows
)

// Shape is what a run looks like to its routing.
type Shape struct {
	Ranks     int    // 1..65536
	Experts   int    // physical experts, 1..1048576; 0 takes the number from a .u8 file
	TopK      int    // picks per token, 1..256; 0 takes the number from the file
	MaxTokens int    // most tokens of one rank in one round; the stride of a token file's windows
	Seed      uint64 // of everything drawn
}

// Source gives the routing of every rank in every round.
type Source interface {
	// Fill writes the picks of rank in round: ids [T, TopK] row-major, physical
	// experts or -1 for none, and weights [T, TopK], which are uneven and do not
	// sum to one per token. T is len(ids)/TopK. It fails, having written
	// nothing, if the lengths differ or are no multiple of TopK, if rank or round
	// is out of range, or if the source holds fewer tokens for that rank.
	Fill(rank, round int, ids []int32, weights []float32) error

	// Tokens is how many tokens the source holds for a rank, the same in every
	// round; -1 if it has any number.
	Tokens(rank int) int

	// Shape is the shape given to Open with its zeros filled in.
	Shape() Shape

	// String names the source for a report.
	String() string
}

// Errors of Fill, made in advance since Fill is called in every round.
var (
	ErrFillShape  = errors.New("workload: ids and weights must have the same length, a multiple of TopK")
	ErrFillRank   = errors.New("workload: rank or round out of range")
	ErrFillTokens = errors.New("workload: the routing file holds fewer tokens for this rank")
)

// Open returns the source that spec names:
//
//	uniform        distinct experts, all equally likely
//	zipf:S         distinct experts; the n-th most popular has likelihood n^-S,
//	               0 <= S <= 20; which expert is how popular is drawn from the seed
//	one:EXPERT     every pick of every token is EXPERT
//	FILE.u8:LAYER  recorded picks of one MoE layer, by its number in the model;
//	               without :LAYER the first recorded. See openRecorded
//	FILE           JSON Lines, any other name. See openLines
//
// With more picks than experts, uniform and zipf pick every expert once and give
// -1 for the rest. All faults of shape are reported at once.
func Open(spec string, shape Shape) (Source, error) {
	file := spec != "uniform" && !strings.HasPrefix(spec, "zipf:") && !strings.HasPrefix(spec, "one:")
	if err := shape.validate(file); err != nil {
		return nil, err
	}
	if file {
		return openFile(spec, shape)
	}
	if spec == "uniform" {
		return newDrawn(spec, shape, 0), nil
	}
	if s, is := strings.CutPrefix(spec, "zipf:"); is {
		exponent, err := strconv.ParseFloat(s, 64)
		if err != nil || !(exponent >= 0 && exponent <= MaxZipf) {
			return nil, fmt.Errorf("workload: %s: the exponent must be a number in 0..%d", clip(spec), MaxZipf)
		}
		return newDrawn(spec, shape, exponent), nil
	}
	e, err := strconv.Atoi(strings.TrimPrefix(spec, "one:"))
	if err != nil || e < 0 || e >= shape.Experts {
		return nil, fmt.Errorf("workload: %s: the expert must be a number in 0..%d", clip(spec), shape.Experts-1)
	}
	return &single{spec: spec, shape: shape, expert: int32(e)}, nil
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}

func (s Shape) validate(file bool) error {
	var faults []error
	within := func(name string, v, least, most int) {
		if v < least || v > most {
			faults = append(faults, fmt.Errorf("workload: %s is %d, the range is %d..%d", name, v, least, most))
		}
	}
	least := 1
	if file {
		least = 0
	}
	within("Ranks", s.Ranks, 1, MaxRanks)
	within("Experts", s.Experts, least, MaxExperts)
	within("TopK", s.TopK, least, MaxTopK)
	within("MaxTokens", s.MaxTokens, 0, 1<<30)
	return errors.Join(faults...)
}

// check is the common part of every Fill.
func (s *Shape) check(rank, round int, ids []int32, weights []float32) error {
	if len(ids) != len(weights) || len(ids)%s.TopK != 0 {
		return ErrFillShape
	}
	if rank < 0 || rank >= s.Ranks || round < 0 {
		return ErrFillRank
	}
	return nil
}

// stream is the random stream of one rank in one round. Streams of different
// (seed, rank, round, use) are unrelated.
func (s *Shape) stream(pcg *rand.PCG, rank, round int, use uint64) {
	pcg.Seed(mix(s.Seed^use), mix(uint64(rank)<<40^uint64(round)))
}

// mix is the finaliser of SplitMix64: it spreads small numbers over all bits.
func mix(v uint64) uint64 {
	v += 0x9e3779b97f4a7c15
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return v ^ v>>31
}

// What a stream is used for.
const (
	usePicks uint64 = iota << 56
	useWeights
	usePopularity
)

// fillWeights draws weights in [1/16, 1) with all 24 bits of an fp32, so that
// products are not exact by luck.
func (s *Shape) fillWeights(rank, round int, weights []float32) {
	var pcg rand.PCG
	s.stream(&pcg, rank, round, useWeights)
	for i := range weights {
		u := float32(pcg.Uint64()>>40) * 0x1p-24
		weights[i] = 0x1p-4 + u*(1-0x1p-4)
	}
}

// single sends every pick to one expert.
type single struct {
	spec   string
	shape  Shape
	expert int32
}

func (s *single) Tokens(int) int { return -1 }
func (s *single) Shape() Shape   { return s.shape }
func (s *single) String() string { return s.spec }

func (s *single) Fill(rank, round int, ids []int32, weights []float32) error {
	if err := s.shape.check(rank, round, ids, weights); err != nil {
		return err
	}
	for i := range ids {
		ids[i] = s.expert
	}
	s.shape.fillWeights(rank, round, weights)
	return nil
}
