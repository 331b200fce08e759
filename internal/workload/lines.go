package workload

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// lines is routing that a JSON Lines file gives outright, the same every round.
type lines struct {
	path  string
	shape Shape
	ranks []rankLine // [Ranks]
}

type rankLine struct {
	ids     []int32 // [T, TopK]
	weights []float32
}

// openLines reads JSON Lines, one line for each rank that has tokens:
//
//	{"rank":0,"ids":[[...TopK],...T],"weights":[[...TopK],...T]}
//
// Ranks without a line have no tokens. Ids are -1 or 0..Experts-1; every fault
// of every line is reported, at most 20. shape must say Experts; TopK 0 is taken
// from the first token of the file.
func openLines(path string, shape Shape) (Source, error) {
	data, err := readFile(path, maxLinesBytes)
	if err != nil {
		return nil, err
	}
	return parseLines(path, data, shape)
}

func parseLines(path string, data []byte, shape Shape) (*lines, error) {
	if shape.Experts == 0 {
		return nil, fmt.Errorf("workload: %s: the number of experts must be given with JSON Lines", path)
	}
	l := &lines{path: path, shape: shape, ranks: make([]rankLine, shape.Ranks)}
	var faults []error
	seen := map[int]int{}
	for n := 1; len(data) > 0 && len(faults) < 20; n++ {
		line, rest, _ := bytes.Cut(data, []byte("\n"))
		data = rest
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if err := l.line(line, n, seen); err != nil {
			faults = append(faults, fmt.Errorf("workload: %s: line %d: %w", path, n, err))
		}
	}
	if len(seen) == 0 && len(faults) == 0 {
		faults = append(faults, fmt.Errorf("workload: %s holds no rank", path))
	}
	if len(faults) == 0 && l.shape.TopK == 0 {
		faults = append(faults, fmt.Errorf("workload: %s: no token tells top_k", path))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *lines) line(text []byte, number int, seen map[int]int) error {
	var in struct {
		Rank    *int        `json:"rank"`
		IDs     [][]int32   `json:"ids"`
		Weights [][]float32 `json:"weights"`
	}
	if bytes.Contains(text, []byte("null")) { // which would pass for 0
		return errors.New("null is not allowed")
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return errors.New("ends too early")
		}
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("something follows the object")
	}
	if in.Rank == nil {
		return errors.New("rank is missing")
	}
	rank := *in.Rank
	if rank < 0 || rank >= l.shape.Ranks {
		return fmt.Errorf("rank %d, the range is 0..%d", rank, l.shape.Ranks-1)
	}
	if before, twice := seen[rank]; twice {
		return fmt.Errorf("rank %d is already on line %d", rank, before)
	}
	seen[rank] = number
	if len(in.IDs) != len(in.Weights) {
		return fmt.Errorf("ids have %d tokens, weights %d", len(in.IDs), len(in.Weights))
	}
	for t, ids := range in.IDs {
		if l.shape.TopK == 0 {
			if len(ids) < 1 || len(ids) > MaxTopK {
				return fmt.Errorf("token %d has %d ids, the range of top_k is 1..%d", t, len(ids), MaxTopK)
			}
			l.shape.TopK = len(ids)
		}
		if k := l.shape.TopK; len(ids) != k || len(in.Weights[t]) != k {
			return fmt.Errorf("token %d has %d ids and %d weights, top_k is %d", t, len(ids), len(in.Weights[t]), k)
		}
		for k, e := range ids {
			if e < -1 || int(e) >= l.shape.Experts {
				return fmt.Errorf("token %d, pick %d is expert %d, the range is 0..%d, -1 for none", t, k, e, l.shape.Experts-1)
			}
		}
	}
	l.ranks[rank] = rankLine{slices.Concat(in.IDs...), slices.Concat(in.Weights...)}
	return nil
}

func (l *lines) Shape() Shape   { return l.shape }
func (l *lines) String() string { return l.path }

func (l *lines) Tokens(rank int) int {
	if rank < 0 || rank >= len(l.ranks) {
		return 0
	}
	return len(l.ranks[rank].ids) / l.shape.TopK
}

func (l *lines) Fill(rank, round int, ids []int32, weights []float32) error {
	if err := l.shape.check(rank, round, ids, weights); err != nil {
		return err
	}
	if len(ids) > len(l.ranks[rank].ids) {
		return ErrFillTokens
	}
	copy(ids, l.ranks[rank].ids)
	copy(weights, l.ranks[rank].weights)
	return nil
}
