package casefile

import (
	"math"
	"reflect"
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

// paramField is one key of Params: how to read it from a file, copy it from one
// Params to another, and get its value for writing.
type paramField struct {
	key  string
	read func(w *walker, p *Params)
	copy func(dst, src *Params)
	get  func(p *Params) any
}

// differ reports whether a and b have another value for the key.
func (f *paramField) differ(a, b *Params) bool {
	return !reflect.DeepEqual(f.get(a), f.get(b))
}

func field[T any](key string, at func(*Params) *T, read func(*walker) T) paramField {
	return paramField{key,
		func(w *walker, p *Params) { *at(p) = read(w) },
		func(dst, src *Params) { *at(dst) = *at(src) },
		func(p *Params) any { return *at(p) }}
}

func intField(key string, least, most int64, at func(*Params) *int) paramField {
	return field(key, at, func(w *walker) int { return int(w.integer(least, most)) })
}

func wordField(key string, at func(*Params) *string, words ...string) paramField {
	return field(key, at, func(w *walker) string { return w.word(words) })
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
	field("apply_weights", func(p *Params) *bool { return &p.ApplyWeights }, (*walker).boolean),
	intField("replicas", 1, maxRanks, func(p *Params) *int { return &p.Replicas }),
	intField("ranks_per_node", 0, maxRanks, func(p *Params) *int { return &p.RanksPerNode }),
	intField("nics", 1, 64, func(p *Params) *int { return &p.NICs }),
	intField("slots", 1, 64, func(p *Params) *int { return &p.Slots }),
	intField("send_depth", 0, 1<<20, func(p *Params) *int { return &p.SendDepth }),
	intField("window_rows", 0, maxTokens, func(p *Params) *int { return &p.WindowRows }),
	intField("max_recv_rows", 0, math.MaxInt32, func(p *Params) *int { return &p.MaxRecvRows }),
	field("placement", func(p *Params) *[][]int32 { return &p.Placement }, (*walker).placement),
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
