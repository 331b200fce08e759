package casefile

import (
	"encoding/json"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// Ranges of single values. What a runtime can do may be less; it says so itself.
const (
	maxRanks   = 256
	maxExperts = 1 << 16
	maxTopK    = 256
	maxHidden  = 1 << 16
	maxTokens  = 1 << 20
	maxRepeat  = 10000
	maxRound   = math.MaxInt32
	maxMillis  = 3600 * 1000
)

// paramField reads one key of Params, and copies it from one Params to another.
type paramField struct {
	key  string
	read func(w *walker, p *Params)
	copy func(dst, src *Params)
}

func intField(key string, least, most int64, at func(*Params) *int) paramField {
	return paramField{key,
		func(w *walker, p *Params) { *at(p) = int(w.integer(least, most)) },
		func(dst, src *Params) { *at(dst) = *at(src) }}
}

func wordField(key string, at func(*Params) *string, words ...string) paramField {
	return paramField{key,
		func(w *walker, p *Params) { *at(p) = w.word(words) },
		func(dst, src *Params) { *at(dst) = *at(src) }}
}

// paramFields is every key that the case and rank_overrides share.
var paramFields = []paramField{
	intField("experts", 1, maxExperts, func(p *Params) *int { return &p.Experts }),
	intField("top_k", 1, maxTopK, func(p *Params) *int { return &p.TopK }),
	intField("hidden", 1, maxHidden, func(p *Params) *int { return &p.Hidden }),
	intField("max_tokens", 1, maxTokens, func(p *Params) *int { return &p.MaxTokens }),
	wordField("dtype", func(p *Params) *string { return &p.DType }, "fp32", "bf16", "fp16", "fp8"),
	wordField("out_dtype", func(p *Params) *string { return &p.OutDType }, "fp32", "bf16", "fp16"),
	intField("scale_block", 0, maxHidden, func(p *Params) *int { return &p.ScaleBlock }),
	wordField("layout", func(p *Params) *string { return &p.Layout }, "grouped", "batched", "rows"),
	intField("expert_alignment", 1, 1<<16, func(p *Params) *int { return &p.ExpertAlignment }),
	wordField("reduce", func(p *Params) *string { return &p.Reduce }, "expert", "home"),
	{"apply_weights",
		func(w *walker, p *Params) { p.ApplyWeights = w.boolean() },
		func(dst, src *Params) { dst.ApplyWeights = src.ApplyWeights }},
	intField("replicas", 1, maxRanks, func(p *Params) *int { return &p.Replicas }),
	intField("ranks_per_node", 0, maxRanks, func(p *Params) *int { return &p.RanksPerNode }),
	intField("nics", 1, 64, func(p *Params) *int { return &p.NICs }),
	intField("slots", 1, 64, func(p *Params) *int { return &p.Slots }),
	intField("send_depth", 0, 1<<20, func(p *Params) *int { return &p.SendDepth }),
	intField("window_rows", 0, maxTokens, func(p *Params) *int { return &p.WindowRows }),
	intField("max_recv_rows", 0, math.MaxInt32, func(p *Params) *int { return &p.MaxRecvRows }),
	{"placement",
		func(w *walker, p *Params) { p.Placement = w.placement() },
		func(dst, src *Params) { dst.Placement = src.Placement }},
}

func readParam(w *walker, key string, p *Params) bool {
	for _, f := range paramFields {
		if f.key == key {
			f.read(w, p)
			return true
		}
	}
	return false
}

// Decode reads one case file. The error is a *FileError that lists every fault
// with its path, or what the reader returned. r is read to its end, at most
// 16 MiB; nothing is allocated on the word of the file.
func Decode(r io.Reader) (*Case, error) {
	w, err := newWalker(r)
	if err != nil {
		return nil, err
	}
	c := &Case{Fabric: "loopback", Deadline: 2 * time.Second, OnFailure: "stop",
		Params: Params{DType: "fp32", OutDType: "fp32", Layout: "grouped", ExpertAlignment: 1, Reduce: "expert",
			ApplyWeights: true, Replicas: 1, NICs: 1, Slots: 1}}
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
			return readParam(w, key, &o.params)
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

// faultPlan reads the faults object.
func (w *walker) faultPlan() Faults {
	var f Faults
	w.object(func(key string) bool {
		switch key {
		case "seed":
			f.Seed = w.seed()
		case "reorder":
			f.Reorder = w.boolean()
		case "delay_us":
			f.DelayMin, f.DelayMax = w.delay()
		case "pause":
			w.list(false, func(int) { f.Pause = append(f.Pause, w.pause()) })
		case "kill":
			w.list(false, func(int) {
				p := w.event("rank", "round", "phase")
				f.Kill = append(f.Kill, Kill{p.rank, p.round, p.phase})
			})
		case "absent":
			w.list(false, func(int) { f.Absent = append(f.Absent, w.rank()) })
		case "partition":
			w.list(false, func(int) {
				group := []int{}
				w.list(false, func(int) { group = append(group, w.rank()) })
				f.Partition = append(f.Partition, group)
			})
		case "fail_register":
			w.list(false, func(int) {
				p := w.event("rank", "nth", "errno")
				f.FailRegister = append(f.FailRegister, FailRegister{p.rank, p.nth, p.errno})
			})
		case "rail_down":
			w.list(false, func(int) { f.RailDown = append(f.RailDown, w.rail()) })
		case "rail_up":
			w.list(false, func(int) { f.RailUp = append(f.RailUp, w.rail()) })
		default:
			return false
		}
		f.used = append(f.used, key)
		return true
	})
	return f
}

func (w *walker) rank() int { return int(w.integer(0, maxRanks-1)) }

func (w *walker) seed() uint64 {
	t := w.token()
	if n, ok := t.(json.Number); ok {
		if v, err := strconv.ParseUint(n.String(), 10, 64); err == nil {
			return v
		}
	}
	w.wrong(t, "a whole number in 0..2^64-1")
	return 0
}

func (w *walker) delay() (least, most time.Duration) {
	var list []time.Duration
	w.list(false, func(int) {
		list = append(list, time.Duration(w.integer(0, 60e6))*time.Microsecond)
	})
	if len(list) != 2 || list[0] > list[1] {
		w.fault("want two numbers, the lesser first")
		return 0, 0
	}
	return list[0], list[1]
}

func (w *walker) pause() Pause {
	e := w.event("rank", "round", "phase", "ms")
	return Pause{e.rank, e.round, e.phase, time.Duration(e.ms) * time.Millisecond}
}

func (w *walker) rail() Rail {
	e := w.event("rank", "nic", "round")
	return Rail{e.rank, e.nic, e.round}
}

// event is one entry of a fault list: what of it is read depends on the kind.
type event struct {
	rank, round, nic, nth, ms int
	phase, errno              string
}

// event reads an object that must have exactly the given keys.
func (w *walker) event(keys ...string) event {
	var e event
	missing := map[string]bool{}
	for _, k := range keys {
		missing[k] = true
	}
	before := len(w.faults)
	w.object(func(key string) bool {
		if !missing[key] {
			return false
		}
		delete(missing, key)
		switch key {
		case "rank":
			e.rank = w.rank()
		case "round":
			e.round = int(w.integer(0, maxRound))
		case "nic":
			e.nic = int(w.integer(0, 63))
		case "nth":
			e.nth = int(w.integer(1, maxRound))
		case "ms":
			e.ms = int(w.integer(0, maxMillis))
		case "phase":
			e.phase = w.word(Phases)
		case "errno":
			e.errno = w.errno()
		}
		return true
	})
	for _, k := range keys {
		if missing[k] && w.err == nil && len(w.faults) == before {
			w.fault("%s is missing", k)
		}
	}
	return e
}

func (w *walker) errno() string {
	t := w.token()
	if s, ok := t.(string); ok && len(s) > 1 && len(s) <= 16 && s[0] == 'E' && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") == "" {
		return s
	}
	w.wrong(t, "the symbol of an errno, as ENOMEM")
	return ""
}
