package rounds

import (
	"math"
	"strings"
	"time"

	"moerail/cmd/moerail/internal/affine"
	"moerail/internal/reference"
	"moerail/internal/workload"
	"moerail/moe"
)

// model is what a run computes: which tokens go where and what the experts do
// with them. All ranks of a process share one; it is immutable.
type model struct {
	load        *payload
	routing     workload.Source
	placement   [][]int32 // physical experts per rank
	given       [][]int32 // as passed to the runtime, nil is consecutive
	scale, bias []float32 // per physical expert
}

func newModel(o *Options) (*model, error) {
	m := &model{load: newPayload(o), routing: o.source}
	var err error
	if o.Placement != "" {
		if m.given, err = workload.ReadPlacement(o.Placement, o.Ranks, o.Experts); err != nil {
			return nil, &OptionError{"placement", strings.TrimPrefix(err.Error(), "workload: ")}
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
