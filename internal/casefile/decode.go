package casefile

import (
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// Decode reads one case file. The error is a *FileError that lists every fault
// with its path, or what the reader returned. r is read to its end, at most
// 8 MiB; nothing is allocated on the word of the file.
func Decode(r io.Reader) (*Case, error) {
	w, err := newWalker(r)
	if err != nil {
		return nil, err
	}
	c := defaults()
	given := map[string]bool{}
	w.object(func(key string) bool {
		given[key] = true
		return c.read(w, key)
	})
	if w.err == nil {
		for _, key := range []string{"format", "ranks", "experts", "top_k", "hidden", "rounds"} {
			if !given[key] {
				w.faultAt(key, "is missing")
			}
		}
		c.fill(given)
		if len(w.faults) == 0 { // a consistency check of refused values would mislead
			c.check(w)
		}
	}
	if err := w.end(); err != nil {
		return nil, err
	}
	return c, nil
}

func defaults() *Case {
	return &Case{Fabric: "loopback", Deadline: 2 * time.Second, OnFailure: "stop",
		Params: Params{DType: "fp32", OutDType: "fp32", Layout: "grouped", ExpertAlignment: 1, Reduce: "expert",
			ApplyWeights: true, Replicas: 1, NICs: 1, Slots: 1}}
}

// read reads the value of one key of the case.
func (c *Case) read(w *walker, key string) bool {
	switch key {
	case "format":
		w.word([]string{FormatCase})
	case "ranks":
		c.Ranks = int(w.integer(1, maxRanks))
	case "fabric":
		c.Fabric = w.fabric()
	case "deadline_ms":
		c.Deadline = time.Duration(w.integer(1, maxMillis)) * time.Millisecond
	case "first_deadline_ms":
		c.FirstDeadline = time.Duration(w.integer(0, maxMillis)) * time.Millisecond
	case "on_failure":
		c.OnFailure = w.word([]string{"stop", "mask"})
	case "expert_fn":
		w.object(func(key string) bool {
			switch key {
			case "scale":
				c.Scale = w.floats()
			case "bias":
				c.Bias = w.floats()
			default:
				return false
			}
			return true
		})
	case "rank_overrides":
		c.Overrides = w.overrides()
	case "faults":
		c.Faults = w.faultPlan()
	case "rounds":
		w.list(false, func(int) { c.Rounds = append(c.Rounds, w.round()) })
	default:
		return readParam(w, key, &c.Params)
	}
	return true
}

// fill sets the defaults that depend on other keys.
func (c *Case) fill(given map[string]bool) {
	if !given["max_tokens"] {
		c.MaxTokens = 8
		for _, r := range c.Rounds {
			for _, in := range r.Ranks {
				c.MaxTokens = max(c.MaxTokens, len(in.X), len(in.IDs))
			}
		}
	}
	if !given["expert_fn"] {
		c.Scale, c.Bias = make([]float32, c.Experts), make([]float32, c.Experts)
		for e := range c.Scale {
			c.Scale[e] = 1
		}
	}
}

func (w *walker) fabric() string {
	t := w.token()
	if s, ok := t.(string); ok {
		if provider, is := strings.CutPrefix(s, "libfabric:"); is && provider != "" && len(provider) <= 64 {
			return s
		}
		for _, name := range []string{"auto", "loopback", "shm", "verbs", "efa"} {
			if s == name {
				return s
			}
		}
	}
	w.wrong(t, "one of auto, loopback, shm, verbs, efa, libfabric:PROVIDER")
	return "loopback"
}

func (w *walker) floats() []float32 {
	list := []float32{}
	w.list(false, func(int) { list = append(list, w.float()) })
	return list
}

func (w *walker) placement() [][]int32 {
	place := [][]int32{}
	null := w.list(true, func(int) {
		experts := []int32{}
		w.list(false, func(int) { experts = append(experts, int32(w.integer(0, maxExperts-1))) })
		place = append(place, experts)
	})
	if null {
		return nil
	}
	return place
}

func (w *walker) overrides() map[int]Override {
	all := map[int]Override{}
	w.object(func(rank string) bool {
		n, err := strconv.Atoi(rank)
		if err != nil || n < 0 || n >= maxRanks || strconv.Itoa(n) != rank {
			w.fault("is not a rank number")
			w.skip(w.token())
			return true
		}
		var o Override
		w.object(func(key string) bool {
			o.Keys = append(o.Keys, key)
			return readParam(w, key, &o.Values)
		})
		all[n] = o
		return true
	})
	return all
}

func (w *walker) round() Round {
	r := Round{Repeat: 1}
	w.object(func(key string) bool {
		switch key {
		case "repeat":
			r.Repeat = int(w.integer(1, maxRepeat))
		case "ranks":
			w.list(false, func(int) { r.Ranks = append(r.Ranks, w.rankInput()) })
		default:
			return false
		}
		return true
	})
	return r
}

func (w *walker) rankInput() RankInput {
	var in RankInput
	w.object(func(key string) bool {
		switch key {
		case "x":
			in.X = rows(w, func() float32 { return w.float() })
		case "ids":
			in.IDs = rows(w, func() int32 { return int32(w.integer(math.MinInt32, math.MaxInt32)) })
		case "weights":
			in.Weights = rows(w, func() float32 { return w.float() })
		default:
			return false
		}
		return true
	})
	return in
}

// rows reads a list of lists of any lengths. A row starts with the capacity of
// the row before, which the file has paid for in bytes.
func rows[T any](w *walker, value func() T) [][]T {
	var all [][]T
	width := 0
	w.list(true, func(int) {
		row := make([]T, 0, width)
		w.list(false, func(int) { row = append(row, value()) })
		width = len(row)
		all = append(all, row)
	})
	return all
}
