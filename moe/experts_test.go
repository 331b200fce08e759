package moe

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
)

// experts computes this rank's experts over what it received, into the batch's Y:
// each its own function, all rows that no pick has stay NaN.
func (w *world) experts(c *Communicator, b *Batch) error {
	fill := b.Y[:min(len(b.Y), 256<<10)]
	for i := range fill {
		fill[i] = 0xff
	}
	x := make([]float32, 0, c.cfg.Hidden)
	serve := func(e int32, payload, side []byte, row int) (err error) {
		if x, err = w.seen(c, x, payload, side); err != nil {
			return err
		}
		w.expert(b.Experts[e], x)
		encode(b.Y[row*b.YStride:row*b.YStride], x, c.cfg.OutDType)
		return nil
	}
	size := int(c.plan.Shape.PayloadBytes)
	at := func(row int) (payload, side []byte) {
		return b.X[row*b.XStride:][:size], b.Scales[row*b.ScaleStride:][:b.ScaleStride]
	}
	switch c.cfg.Layout {
	case LayoutGrouped:
		picks := 0
		for row, e := range b.RowExpert {
			payload, side := at(row)
			if e < 0 {
				if c.cfg.ZeroFill && !(zero(payload) && zero(side)) {
					return fmt.Errorf("row %d is padding and not zeroed", row)
				}
				continue
			}
			if int(b.Starts[e]) > row || row >= int(b.Starts[e]+b.Counts[e]) {
				return fmt.Errorf("row %d is of expert %d, whose rows are %d to %d", row, e, b.Starts[e], b.Starts[e]+b.Counts[e])
			}
			if err := serve(e, payload, side, row); err != nil {
				return err
			}
			picks++
		}
		if picks != b.NumPicks {
			return fmt.Errorf("%d rows hold picks, NumPicks is %d", picks, b.NumPicks)
		}
	case LayoutBatched:
		for e, n := range b.Counts {
			for i := range int(n) {
				payload, side := at(e*b.Capacity + i)
				if err := serve(int32(e), payload, side, e*b.Capacity+i); err != nil {
					return err
				}
			}
			if c.cfg.ZeroFill && int(n) < b.Capacity {
				if payload, side := at(e*b.Capacity + int(n)); !(zero(payload) && zero(side)) {
					return fmt.Errorf("expert %d: row %d is unused and not zeroed", e, n)
				}
			}
		}
	case LayoutRows:
		next, k := 0, c.cfg.TopK
		for i := range b.NumRows {
			for _, e := range b.TopK[i*k : (i+1)*k] {
				if e < 0 {
					continue
				}
				if err := serve(e, b.Row(i), b.RowScales(i), next); err != nil {
					return err
				}
				next++
			}
		}
		if next != b.NumPicks || next != b.OutRows {
			return fmt.Errorf("%d picks, NumPicks %d, OutRows %d", next, b.NumPicks, b.OutRows)
		}
	}
	return nil
}

func zero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// expert replaces x by what expert e makes of it, as the oracle defines it.
func (w *world) expert(e int32, x []float32) {
	scale, bias := w.ref.Scale[e], w.ref.Bias[e]
	for i, v := range x {
		scaled := float32(scale * v)
		x[i] = float32(scaled + bias)
	}
}

// seen is a received row as values.
func (w *world) seen(c *Communicator, x []float32, payload, side []byte) ([]float32, error) {
	x = decode(x, payload, c.cfg.DType)
	switch {
	case c.cfg.ScaleBytes > 0:
		if want := sideBytes(payload, c.cfg.ScaleBytes); !bytes.Equal(side, want) {
			return x, fmt.Errorf("side bytes %x, want %x", side, want)
		}
	case c.cfg.InDType != c.cfg.DType:
		for i := range x {
			x[i] *= math.Float32frombits(binary.LittleEndian.Uint32(side[i/c.cfg.ScaleBlock*4:]))
		}
	}
	return x, nil
}
