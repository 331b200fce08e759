package rounds

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"moerail/cmd/moerail/internal/machine"
	"moerail/internal/workload"
	"moerail/moe"
	"moerail/moe/routing"
)

// Options is a run as it was asked for, and after Resolve as it will be; its
// JSON is the config of the report.
type Options struct {
	Ranks        int      `json:"ranks"`
	RanksPerNode int      `json:"ranks_per_node"` // 0: every rank a node of its own
	Experts      int      `json:"experts"`
	TopK         int      `json:"top_k"`
	Hidden       int      `json:"hidden"`
	Tokens       []int    `json:"tokens"` // per rank; before Resolve one stands for all, none for what the routing holds, or 128
	DType        string   `json:"dtype"`
	OutDType     string   `json:"out_dtype"`
	Layout       string   `json:"layout"`
	Reduce       string   `json:"reduce"`    // expert or home
	Routing      string   `json:"routing"`   // uniform, zipf:S, one:EXPERT or FILE[:LAYER]
	Placement    string   `json:"placement"` // file, "" is consecutive
	Replicas     int      `json:"replicas"`
	Slots        int      `json:"slots"`
	NICs         int      `json:"nics"`
	WindowRows   int      `json:"window_rows"` // 0: as many as tokens
	Rounds       int      `json:"rounds"`
	Warmup       int      `json:"warmup"`
	Seed         uint64   `json:"seed"`
	Fabric       string   `json:"fabric"`
	Device       string   `json:"device"`
	Launch       string   `json:"launch"`
	Deadline     Duration `json:"deadline"`
	Verify       string   `json:"verify"`

	source workload.Source // from Resolve
}

// Duration is a time.Duration that reads and writes as "10s".
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

// Defaults are the values of flags not given.
func Defaults() Options {
	return Options{
		Ranks: 8, Experts: 256, TopK: 8, Hidden: 7168,
		DType: "fp8", OutDType: "bf16", Layout: "grouped", Reduce: "expert", Routing: "uniform",
		Replicas: 1, Slots: 1, NICs: 1, Rounds: 100, Warmup: 10, Seed: 1,
		Fabric: "auto", Device: "auto", Launch: "inproc", Deadline: Duration(10 * time.Second), Verify: "all",
	}
}

// ScaleBlock is the number of elements that share a scale in an fp8 run.
const ScaleBlock = 128

const (
	defaultTokens = 128
	maxRounds     = 1 << 20
	minDeadline   = time.Millisecond
	maxDeadline   = time.Hour
)

// OptionError is an option that cannot be. It names the flag.
type OptionError struct{ Flag, Reason string }

func (e *OptionError) Error() string { return "--" + e.Flag + " " + e.Reason }

// Resolve checks what the runtime does not check itself and replaces the words
// auto and the single token count by what they stand for here.
func (o *Options) Resolve() error {
	bad := func(flag, format string, args ...any) error {
		return &OptionError{flag, fmt.Sprintf(format, args...)}
	}
	for _, r := range []struct {
		flag        string
		value       int
		least, most int
	}{
		{"ranks", o.Ranks, 1, routing.MaxRanks}, {"top-k", o.TopK, 1, routing.MaxTopK},
		{"experts", o.Experts, 1, routing.MaxExperts}, {"hidden", o.Hidden, 1, routing.MaxHidden},
		{"replicas", o.Replicas, 1, routing.MaxRanks}, {"slots", o.Slots, 1, routing.MaxSlots},
		{"nics", o.NICs, 1, routing.MaxNICs}, {"window-rows", o.WindowRows, 0, routing.MaxTokens},
		{"ranks-per-node", o.RanksPerNode, 0, routing.MaxRanks},
		{"rounds", o.Rounds, 1, maxRounds}, {"warmup", o.Warmup, 0, maxRounds},
	} {
		if r.value < r.least || r.value > r.most {
			return bad(r.flag, "is %d, allowed are %d to %d", r.value, r.least, r.most)
		}
	}
	if _, err := moe.ParseDType(o.DType); err != nil {
		return bad("dtype", "is %q, want fp8, bf16, fp16 or fp32", o.DType)
	}
	if out, err := moe.ParseDType(o.OutDType); err != nil || out == moe.FP8 {
		return bad("out-dtype", "is %q, want bf16, fp16 or fp32", o.OutDType)
	}
	for _, w := range []struct {
		flag, value string
		words       []string
	}{
		{"layout", o.Layout, []string{"grouped", "batched", "rows"}},
		{"reduce", o.Reduce, []string{"expert", "home"}},
		{"launch", o.Launch, []string{"inproc", "processes", "env"}},
		{"verify", o.Verify, []string{"all", "sample", "off"}},
	} {
		if err := oneOf(w.flag, w.value, w.words); err != nil {
			return err
		}
	}
	if d := time.Duration(o.Deadline); d < minDeadline || d > maxDeadline {
		return bad("deadline", "is %v, allowed are %v to %v", d, minDeadline, maxDeadline)
	}
	switch o.Device {
	case "auto", "host":
		o.Device = "host"
	case "cuda":
		return bad("device", "cuda is not in this build, which has host")
	default:
		return bad("device", "is %q, want auto, host or cuda", o.Device)
	}
	if err := o.resolveFabric(); err != nil {
		return err
	}
	return o.resolveTokens()
}

// resolveTokens opens the routing and settles how many tokens each rank has.
func (o *Options) resolveTokens() error {
	bad := func(format string, args ...any) error { return &OptionError{"tokens", fmt.Sprintf(format, args...)} }
	given := len(o.Tokens) > 0
	if !given {
		o.Tokens = []int{defaultTokens}
	}
	for len(o.Tokens) < o.Ranks && len(o.Tokens) == 1 {
		o.Tokens = slices.Repeat(o.Tokens, o.Ranks)
	}
	if len(o.Tokens) != o.Ranks {
		return bad("names %d ranks, there are %d", len(o.Tokens), o.Ranks)
	}
	for p, n := range o.Tokens {
		if n < 0 || n > routing.MaxTokens {
			return bad("is %d on rank %d, allowed are 0 to %d", n, p, routing.MaxTokens)
		}
	}
	if need, have := o.memory(), machine.AvailableBytes(); need > have {
		return bad("x hidden %d needs %d MiB for tokens and results alone, this machine has %d MiB", o.Hidden, need>>20, have>>20)
	}
	var err error
	o.source, err = workload.Open(o.Routing, workload.Shape{Ranks: o.Ranks, Experts: o.Experts, TopK: o.TopK,
		MaxTokens: o.maxTokens(), Seed: o.Seed})
	if err != nil {
		return &OptionError{"routing", strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\nworkload: ", "\n"), "workload: ")}
	}
	if o.Ranks%o.Replicas != 0 {
		return &OptionError{"replicas", fmt.Sprintf("is %d, want a divisor of %d ranks", o.Replicas, o.Ranks)}
	}
	for p := range o.Tokens {
		has := o.source.Tokens(o.owner(p))
		switch {
		case has >= 0 && !given:
			o.Tokens[p] = has
		case has >= 0 && o.Tokens[p] > has:
			return bad("is %d on rank %d, for which %s holds %d", o.Tokens[p], p, o.source, has)
		case o.Tokens[p] != o.Tokens[o.owner(p)]:
			return bad("is %d on rank %d and %d on rank %d, which are replicas of each other", o.Tokens[p], p, o.Tokens[o.owner(p)], o.owner(p))
		}
	}
	return nil
}

func oneOf(flag, value string, words []string) error {
	for _, w := range words {
		if value == w {
			return nil
		}
	}
	return &OptionError{flag, fmt.Sprintf("is %q, want one of %v", value, words)}
}

// memory is the bytes of the row pool and of the results, which are allocated
// whatever the routing says; what the runtime maps is touched as rows come.
func (o *Options) memory() uint64 {
	tokens, rows := uint64(0), uint64(poolRows+o.maxTokens())
	for _, n := range o.Tokens {
		tokens += uint64(n)
	}
	if o.Launch == "processes" {
		rows *= uint64(o.Ranks)
	}
	const most = 4 // bytes of an element, in each of the three
	return uint64(o.Hidden) * most * (rows + poolRows + tokens*uint64(o.Slots))
}

// maxTokens is the limit to declare; a run without tokens still has rounds.
func (o *Options) maxTokens() int {
	most := 1
	for _, n := range o.Tokens {
		most = max(most, n)
	}
	return most
}

// owner is the rank whose tokens rank p brings: the first of its replica group.
func (o *Options) owner(p int) int { return p - p%o.Replicas }

// steps is the number of steps that carry at least n rounds.
func (o *Options) steps(n int) int { return (n + o.Slots - 1) / o.Slots }

// inDType is the type of the tokens a rank brings: fp8 rows are made by the
// runtime out of what the experts return.
func (o *Options) inDType() moe.DType {
	if o.DType == "fp8" {
		d, _ := moe.ParseDType(o.OutDType)
		return d
	}
	d, _ := moe.ParseDType(o.DType)
	return d
}

func (o *Options) scaleBlock() int {
	if o.DType == "fp8" {
		return ScaleBlock
	}
	return 0
}
