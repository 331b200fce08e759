package casefile

import (
	"bufio"
	"encoding/json"
	"io"
	"strconv"
	"time"
)

// Write writes c as a case file, keys with their default left out: Decode reads
// back the same Case. It is for programs that make cases; nothing is checked.
func Write(w io.Writer, c *Case) error {
	b := &caseWriter{Writer: bufio.NewWriter(w)}
	b.WriteString(`{"format":`)
	b.value(FormatCase)
	b.key("ranks", c.Ranks)
	base := defaults()
	for _, f := range paramFields {
		if required := f.key == "experts" || f.key == "top_k" || f.key == "hidden" || f.key == "max_tokens"; required || f.differ(&c.Params, &base.Params) {
			b.key(f.key, f.get(&c.Params))
		}
	}
	b.option("fabric", c.Fabric, base.Fabric)
	b.option("deadline_ms", c.Deadline.Milliseconds(), base.Deadline.Milliseconds())
	b.option("first_deadline_ms", c.FirstDeadline.Milliseconds(), base.FirstDeadline.Milliseconds())
	b.option("on_failure", c.OnFailure, base.OnFailure)
	b.key("expert_fn", map[string]any{"scale": Matrix{c.Scale}.row(0), "bias": Matrix{c.Bias}.row(0)})
	if len(c.Overrides) > 0 {
		all := map[string]any{}
		for rank, o := range c.Overrides {
			values := map[string]any{}
			for _, f := range paramFields {
				for _, key := range o.Keys {
					if f.key == key {
						values[key] = f.get(&o.Values)
					}
				}
			}
			all[strconv.Itoa(rank)] = values
		}
		b.key("rank_overrides", all)
	}
	if faults := c.Faults.document(); len(faults) > 0 {
		b.key("faults", faults)
	}
	b.WriteString(",\n \"rounds\":[")
	for i, r := range c.Rounds {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("\n  {")
		if r.Repeat > 1 {
			b.WriteString(`"repeat":` + strconv.Itoa(r.Repeat) + `,`)
		}
		b.WriteString(`"ranks":[`)
		for p, in := range r.Ranks {
			if p > 0 {
				b.WriteByte(',')
			}
			b.WriteString("\n    {\"x\":")
			b.value(Matrix(in.X).orEmpty())
			b.WriteString(`,"ids":`)
			b.value(append([][]int32{}, in.IDs...))
			b.WriteString(`,"weights":`)
			b.value(Matrix(in.Weights).orEmpty())
			b.WriteByte('}')
		}
		b.WriteString("]}")
	}
	b.WriteString("]}\n")
	if b.err != nil {
		return b.err
	}
	return b.Flush()
}

type caseWriter struct {
	*bufio.Writer
	err error // of encoding; the bufio.Writer keeps its own
}

func (b *caseWriter) value(v any) {
	text, err := json.Marshal(v)
	if err != nil && b.err == nil {
		b.err = err
	}
	b.Write(text)
}

func (b *caseWriter) key(key string, v any) {
	b.WriteString(",\n \"" + key + "\":")
	b.value(v)
}

func (b *caseWriter) option(key string, v, unless any) {
	if v != unless {
		b.key(key, v)
	}
}

// row marshals one row of m as a list of numbers.
func (m Matrix) row(i int) json.RawMessage {
	b := []byte{'['}
	for h, v := range m[i] {
		if h > 0 {
			b = append(b, ',')
		}
		b = appendNumber(b, v)
	}
	return append(b, ']')
}

func (m Matrix) orEmpty() Matrix {
	if m == nil {
		return Matrix{}
	}
	return m
}

// document is the faults object, without what does nothing.
func (f *Faults) document() map[string]any {
	type object = map[string]any
	d := object{}
	if f.Seed != 0 {
		d["seed"] = f.Seed
	}
	if f.Reorder {
		d["reorder"] = true
	}
	if f.DelayMax > 0 {
		d["delay_us"] = []int64{f.DelayMin.Microseconds(), f.DelayMax.Microseconds()}
	}
	add := func(key string, v any) {
		list, _ := d[key].([]any)
		d[key] = append(list, v)
	}
	for _, p := range f.Pause {
		add("pause", object{"rank": p.Rank, "round": p.Round, "phase": p.Phase, "ms": p.Length / time.Millisecond})
	}
	for _, k := range f.Kill {
		add("kill", object{"rank": k.Rank, "round": k.Round, "phase": k.Phase})
	}
	for _, r := range f.Absent {
		add("absent", r)
	}
	for _, group := range f.Partition {
		add("partition", group)
	}
	for _, r := range f.FailRegister {
		add("fail_register", object{"rank": r.Rank, "nth": r.Nth, "errno": r.Errno})
	}
	for _, r := range f.RailDown {
		add("rail_down", object{"rank": r.Rank, "nic": r.NIC, "round": r.Round})
	}
	for _, r := range f.RailUp {
		add("rail_up", object{"rank": r.Rank, "nic": r.NIC, "round": r.Round})
	}
	return d
}
