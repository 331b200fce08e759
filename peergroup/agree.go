package peergroup

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// MaxParams bounds the parameters of one Agree.
const MaxParams = 4096

// Param is one parameter that must be the same on every rank.
type Param struct{ Name, Value string }

// MismatchError reports parameters that are not the same on every rank. Every
// rank gets the same one.
type MismatchError struct {
	What   string
	Fields []FieldMismatch // in the order of rank 0's parameters, then by rank
}

// FieldMismatch is one parameter on which the ranks disagree.
type FieldMismatch struct {
	Name string
	// Values are what the ranks hold, the most frequent first, ties by rank.
	Values []HeldValue
	// AtFault are the ranks that do not hold the first value, ascending. Where
	// two values are equally frequent the one of the lower rank comes first.
	AtFault []int
}

// HeldValue is a value and the ranks that hold it, ascending.
type HeldValue struct {
	Value  string
	Absent bool // these ranks have no parameter of that name
	Ranks  []int
}

// Ranks are the ranks at fault in any field, ascending.
func (e *MismatchError) Ranks() []int {
	var all []int
	for _, f := range e.Fields {
		all = append(all, f.AtFault...)
	}
	return sortedUnique(all)
}

func (e *MismatchError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "peergroup: %s: the ranks disagree", e.What)
	for i, f := range e.Fields {
		if i == 0 {
			b.WriteString(" on ")
		} else {
			b.WriteString("; on ")
		}
		b.WriteString(f.Name)
		b.WriteString(":")
		for j, v := range f.Values {
			if j > 0 {
				b.WriteString(",")
			}
			fmt.Fprintf(&b, " %s on %s", v.text(), rankList(v.Ranks))
		}
	}
	return b.String()
}

// text shortens long values.
func (v HeldValue) text() string {
	const most = 80
	switch {
	case v.Absent:
		return "nothing"
	case len(v.Value) > most:
		return fmt.Sprintf("%q... (%d bytes)", v.Value[:most], len(v.Value))
	}
	return fmt.Sprintf("%q", v.Value)
}

// Agree checks that every rank passes the same params, whatever their order. It
// is a collective: ranks are matched by what, at most MaxKeyBytes less 6 long.
//
// It fails on every rank alike: with *MismatchError if values, or the sets of
// names, differ; with *PeerError if a rank passed a list that is not valid (a
// name empty or twice, more than MaxParams, too long to send). Other errors are
// those of Group.AllGather.
func Agree(ctx context.Context, g Group, what string, params []Param) error {
	// A rank whose list is no good still takes part, or the others would wait.
	blob, faulty := encodeParams(params)
	if faulty != nil {
		blob = encodeFault(faulty)
	}
	blobs, err := g.AllGather(ctx, "agree/"+what, blob)
	if err != nil {
		return fmt.Errorf("peergroup: agree on %s: %w", what, err)
	}
	lists := make([][]Param, len(blobs))
	for r, b := range blobs {
		if lists[r], err = decodeParams(b); err != nil {
			return &PeerError{Rank: r, What: what, Detail: err.Error()}
		}
	}
	return compareParams(what, lists)
}

// A blob of an agreement starts with a byte: statusOK and the contents, or
// statusFault and a text.
const (
	statusOK    = 1
	statusFault = 2
)

// maxFaultBytes bounds the text by which a rank says why it cannot take part.
const maxFaultBytes = 1024

func encodeFault(err error) []byte {
	text := err.Error()
	return append([]byte{statusFault}, text[:min(len(text), maxFaultBytes)]...)
}

// openStatus returns what follows the status byte, or the rank's own fault.
func openStatus(blob []byte) ([]byte, error) {
	if len(blob) == 0 {
		return nil, errShort
	}
	switch rest := blob[1:]; blob[0] {
	case statusOK:
		return rest, nil
	case statusFault:
		return nil, errors.New(strings.ToValidUTF8(string(rest[:min(len(rest), maxFaultBytes)]), "?"))
	}
	return nil, fmt.Errorf("malformed: status %d", blob[0])
}

func encodeParams(params []Param) ([]byte, error) {
	if len(params) > MaxParams {
		return nil, fmt.Errorf("%d parameters, allowed are %d", len(params), MaxParams)
	}
	b := binary.LittleEndian.AppendUint16([]byte{statusOK}, uint16(len(params)))
	seen := make(map[string]bool, len(params))
	for i, p := range params {
		switch {
		case p.Name == "":
			return nil, fmt.Errorf("parameter %d has no name", i)
		case seen[p.Name]:
			return nil, fmt.Errorf("parameter %q stands twice", p.Name)
		case len(b)+8+len(p.Name)+len(p.Value) > MaxBlobBytes:
			return nil, fmt.Errorf("the parameters up to %q take more than %d bytes", p.Name, MaxBlobBytes)
		}
		seen[p.Name] = true
		b = appendString(b, p.Name)
		b = appendString(b, p.Value)
	}
	return b, nil
}

func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

func decodeParams(blob []byte) ([]Param, error) {
	rest, err := openStatus(blob)
	if err != nil {
		return nil, err
	}
	d := decoder{b: rest}
	n := int(d.u16())
	if n > MaxParams || n*8 > len(d.b) {
		return nil, fmt.Errorf("malformed: %d parameters in %d bytes", n, len(d.b))
	}
	params := make([]Param, n)
	seen := make(map[string]bool, n)
	for i := range params {
		p := Param{Name: string(d.bytes(int(d.u32()))), Value: string(d.bytes(int(d.u32())))}
		if d.err != nil {
			break
		}
		if p.Name == "" || seen[p.Name] {
			return nil, fmt.Errorf("malformed: name %q empty or twice", p.Name)
		}
		seen[p.Name] = true
		params[i] = p
	}
	if err := d.done(); err != nil {
		return nil, fmt.Errorf("malformed: %w", err)
	}
	return params, nil
}

// compareParams finds every name that is not held alike by all ranks. lists is
// by rank.
func compareParams(what string, lists [][]Param) error {
	var names []string
	held := make(map[string]map[int]string)
	for r, list := range lists {
		for _, p := range list {
			if held[p.Name] == nil {
				held[p.Name] = make(map[int]string, len(lists))
				names = append(names, p.Name)
			}
			held[p.Name][r] = p.Value
		}
	}
	e := &MismatchError{What: what}
	for _, name := range names {
		var values []HeldValue
		for r := range lists {
			v, ok := held[name][r]
			i := slices.IndexFunc(values, func(h HeldValue) bool { return h.Absent == !ok && h.Value == v })
			if i < 0 {
				i = len(values)
				values = append(values, HeldValue{Value: v, Absent: !ok})
			}
			values[i].Ranks = append(values[i].Ranks, r)
		}
		if len(values) == 1 {
			continue
		}
		// Stable: of equally frequent values the one of the lowest rank leads.
		slices.SortStableFunc(values, func(a, b HeldValue) int { return len(b.Ranks) - len(a.Ranks) })
		f := FieldMismatch{Name: name, Values: values}
		for _, v := range values[1:] {
			f.AtFault = append(f.AtFault, v.Ranks...)
		}
		slices.Sort(f.AtFault)
		e.Fields = append(e.Fields, f)
	}
	if len(e.Fields) == 0 {
		return nil
	}
	return e
}
