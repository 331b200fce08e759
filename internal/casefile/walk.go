package casefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// Limits of the reader itself, so that no file can make it take more memory or
// time than a small multiple of what a real case needs.
const (
	maxFileBytes = 8 << 20
	maxNesting   = 64
	maxFaults    = 50
)

// walker reads JSON token by token along the shape its caller expects. A value
// of another shape is a fault and is skipped; broken JSON ends the walk: err is
// set and every method returns at once.
type walker struct {
	dec    *json.Decoder
	data   []byte
	path   []step
	faults []Fault
	more   int
	err    error
}

// step is one part of a path: a key, or an index if the key is empty.
type step struct {
	key   string
	index int
}

func newWalker(r io.Reader) (*walker, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFileBytes {
		return nil, &FileError{What: "case file", Faults: []Fault{{Reason: fmt.Sprintf("more than %d bytes", maxFileBytes)}}}
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	return &walker{dec: dec, data: data}, nil
}

// end checks that nothing follows the document and returns what was wrong.
func (w *walker) end() error {
	if w.err == nil {
		if _, err := w.dec.Token(); err != io.EOF {
			w.broken(errors.New("something follows the end of the document"))
		}
	}
	if w.err != nil {
		return w.err
	}
	return w.report()
}

func (w *walker) report() error {
	if len(w.faults) == 0 {
		return nil
	}
	return &FileError{What: "case file", Faults: w.faults, More: w.more}
}

// broken ends the walk with the place in the text, since no path helps there.
func (w *walker) broken(err error) {
	if w.err != nil {
		return
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the file ends too early")
	}
	at := w.dec.InputOffset()
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) && syntax.Offset > at {
		at = syntax.Offset
	}
	before := w.data[:min(at, int64(len(w.data)))]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(before) - bytes.LastIndexByte(before, '\n')
	reason := fmt.Sprintf("line %d, column %d: %v", line, column, err)
	w.err = &FileError{What: "case file", Faults: []Fault{{Path: w.where(), Reason: reason}}}
}

func (w *walker) where() string {
	var b strings.Builder
	for _, s := range w.path {
		if s.key == "" {
			fmt.Fprintf(&b, "[%d]", s.index)
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(shorten(s.key))
	}
	return b.String()
}

func (w *walker) fault(format string, args ...any) {
	w.faultAt(w.where(), format, args...)
}

func (w *walker) faultAt(path, format string, args ...any) {
	if len(w.faults) == maxFaults {
		w.more++
		return
	}
	w.faults = append(w.faults, Fault{path, fmt.Sprintf(format, args...)})
}

func shorten(s string) string {
	if len(s) > 40 {
		return s[:40] + "..."
	}
	return s
}

func (w *walker) token() json.Token {
	if w.err != nil {
		return nil
	}
	t, err := w.dec.Token()
	if err != nil {
		w.broken(err)
		return nil
	}
	return t
}

// skip passes over the rest of the value whose first token is t.
func (w *walker) skip(t json.Token) {
	depth := 0
	for w.err == nil {
		switch t {
		case json.Delim('{'), json.Delim('['):
			if depth++; depth > maxNesting {
				w.broken(fmt.Errorf("nested deeper than %d", maxNesting))
			}
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return
		}
		t = w.token()
	}
}

// wrong records that a value has the wrong type and passes over it.
func (w *walker) wrong(t json.Token, want string) {
	if w.err != nil {
		return
	}
	is := "null"
	switch v := t.(type) {
	case json.Delim:
		is = map[json.Delim]string{'{': "an object", '[': "a list"}[v]
	case bool:
		is = strconv.FormatBool(v)
	case json.Number:
		is = shorten(v.String())
	case string:
		is = strconv.Quote(shorten(v))
	}
	w.fault("is %s, want %s", is, want)
	w.skip(t)
}

// object reads an object; value is called for each key, reads the value and
// returns false, reading nothing, if it does not know the key.
func (w *walker) object(value func(key string) bool) {
	if t := w.token(); t != json.Delim('{') {
		w.wrong(t, "an object")
		return
	}
	seen := map[string]bool{}
	for w.err == nil && w.dec.More() {
		key, _ := w.token().(string)
		w.path = append(w.path, step{key: key})
		if key == "" {
			w.path[len(w.path)-1].key = `""`
		}
		switch {
		case w.err != nil:
		case seen[key]:
			w.fault("the key is there twice")
			w.skip(w.token())
		case !value(key):
			w.fault("unknown key")
			w.skip(w.token())
		}
		seen[key] = true
		w.path = w.path[:len(w.path)-1]
	}
	w.token()
}

// list reads a list; element reads the element i. null is a list without
// elements if it may be absent.
func (w *walker) list(nullable bool, element func(i int)) (isNull bool) {
	t := w.token()
	if t == nil && nullable && w.err == nil {
		return true
	}
	if t != json.Delim('[') {
		w.wrong(t, "a list")
		return false
	}
	for i := 0; w.err == nil && w.dec.More(); i++ {
		w.path = append(w.path, step{index: i})
		element(i)
		w.path = w.path[:len(w.path)-1]
	}
	w.token()
	return false
}

// integer reads a whole number within [least, most]; on a fault it returns least.
func (w *walker) integer(least, most int64) int64 {
	t := w.token()
	n, ok := t.(json.Number)
	if !ok {
		w.wrong(t, "a whole number")
		return least
	}
	v, err := strconv.ParseInt(n.String(), 10, 64)
	if errors.Is(err, strconv.ErrSyntax) {
		w.fault("is %s, want a whole number", shorten(n.String()))
		return least
	}
	if err != nil || v < least || v > most {
		w.fault("is %s, the range is %d..%d", shorten(n.String()), least, most)
		return least
	}
	return v
}

// float reads a decimal, rounded once to fp32, or one of the strings NaN,
// Infinity and -Infinity, for which JSON has no number.
func (w *walker) float() float32 {
	t := w.token()
	switch v := t.(type) {
	case json.Number:
		f, err := strconv.ParseFloat(v.String(), 32)
		if err != nil {
			w.fault(`is %s, beyond fp32 (%g); write "Infinity" if that is meant`, shorten(v.String()), math.MaxFloat32)
		}
		return float32(f)
	case string:
		if f, ok := special(v); ok {
			return f
		}
	}
	w.wrong(t, `a number, "NaN", "Infinity" or "-Infinity"`)
	return 0
}

func special(s string) (float32, bool) {
	switch s {
	case "NaN":
		return float32(math.NaN()), true
	case "Infinity":
		return float32(math.Inf(1)), true
	case "-Infinity":
		return float32(math.Inf(-1)), true
	}
	return 0, false
}

func (w *walker) boolean() bool {
	t := w.token()
	v, ok := t.(bool)
	if !ok {
		w.wrong(t, "true or false")
	}
	return v
}

// word reads one of the given strings; on a fault it returns the first.
func (w *walker) word(words []string) string {
	t := w.token()
	if s, ok := t.(string); ok {
		for _, word := range words {
			if s == word {
				return s
			}
		}
	}
	w.wrong(t, "one of "+strings.Join(words, ", "))
	return words[0]
}
