package rounds

import (
	"fmt"
	"math"
	"os"
	"time"

	"moerail/cmd/moerail/internal/affine"
	"moerail/internal/reference"
	"moerail/moe"
)

// model is what a run computes: which tokens go where and what the experts do
// with them. All ranks of a process share one; it is immutable.
type model struct {
	load        *payload
	routing     Routing
	placement   [][]int32 // physical experts per rank
	given       [][]int32 // as passed to the runtime, nil is consecutive
	scale, bias []float32 // per physical expert
}

// Routing deals the picks.
type Routing interface {
	// Fill writes the picks of one rank's tokens in one round: ids and weights
	// are [tokens, TopK], row-major.
	Fill(rank, round int, ids []int32, weights []float32)
}

func newModel(o *Options) (*model, error) {
	m := &model{load: newPayload(o)}
	var err error
	if m.routing, err = openRouting(o); err != nil {
		return nil, &OptionError{"routing", err.Error()}
	}
	if o.Placement != "" {
		if m.given, err = readPlacement(o.Placement, o.Ranks); err != nil {
			return nil, &OptionError{"placement", err.Error()}
		}
	}
	m.placement = m.given
	if m.placement == nil {
		per := (o.Experts + o.Ranks - 1) / o.Ranks
		m.placement = make([][]int32, o.Ranks)
		for e := range o.Experts {
			m.placement[e/per] = append(m.placement[e/per], int32(e))
		}
	}
	// Distinct factors and offsets that bf16 can tell apart: multiples of the
	// golden ratio, modulo one, keep their distance.
	for e := range o.Experts {
		_, f := math.Modf(float64(e+1) * 0.6180339887498949)
		_, g := math.Modf(float64(e+1) * 0.7548776662466927)
		m.scale = append(m.scale, float32(0.5+f))
		m.bias = append(m.bias, float32(4*g-2))
	}
	return m, nil
}

// experts are those of rank p.
func (m *model) experts(o *Options, p int) *affine.Experts {
	cfg := affine.Config{TopK: o.TopK, Hidden: o.Hidden, ScaleBlock: o.scaleBlock()}
	cfg.Layout, _ = moe.ParseLayout(o.Layout)
	cfg.In, _ = moe.ParseDType(o.DType)
	cfg.Out, _ = moe.ParseDType(o.OutDType)
	for _, e := range m.placement[p] {
		cfg.Scale = append(cfg.Scale, m.scale[e])
		cfg.Bias = append(cfg.Bias, m.bias[e])
	}
	return affine.New(cfg)
}

// config is the communicator's configuration on each rank, without who and over
// what.
func (o *Options) config(m *model) moe.Config {
	c := moe.Config{
		NumExperts: o.Experts, TopK: o.TopK, Hidden: o.Hidden, MaxTokens: o.maxTokens(),
		InDType: o.inDType(), ScaleBlock: o.scaleBlock(), ExpertAlignment: 1,
		ReduceAtHome: o.Reduce == "home", Replicas: o.Replicas, RanksPerNode: max(o.RanksPerNode, 1),
		Slots: o.Slots, WindowRows: o.WindowRows, Placement: m.given,
		SetupDeadline: setupDeadline, Deadline: time.Duration(o.Deadline),
	}
	c.DType, _ = moe.ParseDType(o.DType)
	c.OutDType, _ = moe.ParseDType(o.OutDType)
	c.Layout, _ = moe.ParseLayout(o.Layout)
	return c
}

// reference is the same model as the judge takes it.
func (m *model) reference(o *Options) (reference.Config, error) {
	c := reference.Config{
		Ranks: o.Ranks, Experts: o.Experts, TopK: o.TopK, Hidden: o.Hidden, Placement: m.given,
		ScaleBlock: o.scaleBlock(), ReduceAtHome: o.Reduce == "home", ApplyWeights: true,
		Replicas: o.Replicas, Scale: m.scale, Bias: m.bias,
	}
	var err error
	if c.DType, err = reference.ParseDType(o.DType); err != nil {
		return c, err
	}
	c.OutDType, err = reference.ParseDType(o.OutDType)
	return c, err
}

// routes are one rank's picks for a number of rounds, which then repeat with
// other tokens: dealing them is not part of a round.
type routes struct {
	topK    int
	ids     [][]int32
	weights [][]float32
}

const distinctRoutes = 32

func newRoutes(r Routing, o *Options, owner, tokens int) *routes {
	s := &routes{topK: o.TopK}
	for i := range min(distinctRoutes, o.steps(o.Rounds)*o.Slots) {
		ids, weights := make([]int32, tokens*o.TopK), make([]float32, tokens*o.TopK)
		r.Fill(owner, i, ids, weights)
		s.ids, s.weights = append(s.ids, ids), append(s.weights, weights)
	}
	return s
}

func (s *routes) input(load *payload, owner, round, n int) moe.Input {
	i := round % len(s.ids)
	return moe.Input{X: load.tokens(owner, round, n), IDs: s.ids[i], Weights: s.weights[i], NumTokens: n}
}

func readPlacement(file string, ranks int) ([][]int32, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p, err := decodePlacement(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(p) != ranks {
		return nil, fmt.Errorf("%s: has %d ranks, there are %d", file, len(p), ranks)
	}
	return p, nil
}
