package workload

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

const book = "../../testdata/routing/olmoe-1b-7b_book.u8"

// TestRecordedMatchesItsCounts counts every pick of every layer through Fill and
// compares with the counts that came with the recording.
func TestRecordedMatchesItsCounts(t *testing.T) {
	text, err := os.ReadFile("../../testdata/routing/manifest.json")
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Files []struct {
			Layers      []int
			SliceCounts [][]int `json:"slice_counts"`
		}
	}
	if err := json.Unmarshal(text, &manifest); err != nil {
		t.Fatal(err)
	}
	for i, layer := range manifest.Files[0].Layers {
		s := open(t, fmt.Sprintf("%s:%d", book, layer), Shape{Ranks: 8, MaxTokens: 128})
		if got := s.Shape(); got.Experts != 64 || got.TopK != 8 {
			t.Fatalf("shape %+v, want 64 experts, top_k 8", got)
		}
		counts := make([]int, 64)
		for round := range 32768 / (8 * 128) {
			for rank := range 8 {
				ids, _ := fill(t, s, rank, round, 128)
				for _, e := range ids {
					counts[e]++
				}
			}
		}
		if !reflect.DeepEqual(counts, manifest.Files[0].SliceCounts[i]) {
			t.Errorf("layer %d: counts %v, recorded %v", layer, counts, manifest.Files[0].SliceCounts[i])
		}
	}
}

// recordingDir writes a small recording, two layers of three tokens, and lets
// the test spoil it.
func recordingDir(t *testing.T, change func(m map[string]any, data []byte) []byte) string {
	t.Helper()
	dir := t.TempDir()
	data := []byte{0, 1, 2, 3, 1, 0, 3, 2, 0, 2, 1, 3}
	sum := sha256.Sum256(data)
	m := map[string]any{"file": "tokens/a.u8", "layers": []int{0, 7}, "tokens": 3, "top_k": 2, "experts": 4, "bytes": 12, "sha256": fmt.Sprintf("%x", sum)}
	if change != nil {
		data = change(m, data)
	}
	text, err := json.Marshal(map[string]any{"files": []any{m}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"a.u8": data, "manifest.json": text} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "a.u8")
}

func TestRecordedWindows(t *testing.T) {
	s := open(t, recordingDir(t, nil)+":7", Shape{Ranks: 2, MaxTokens: 2})
	for _, a := range []struct {
		rank, round int
		want        []int32
	}{{0, 0, []int32{3, 2, 0, 2}}, {1, 0, []int32{1, 3, 3, 2}}, {0, 1, []int32{0, 2, 1, 3}}, {1, 1, []int32{3, 2, 0, 2}}, {0, 3000000, []int32{3, 2, 0, 2}}} {
		if ids, _ := fill(t, s, a.rank, a.round, 2); !reflect.DeepEqual(ids, a.want) {
			t.Errorf("rank %d round %d: %v, want %v", a.rank, a.round, ids, a.want)
		}
	}
	first := open(t, recordingDir(t, nil), Shape{Ranks: 1, Experts: 9, TopK: 2, MaxTokens: 3})
	if ids, _ := fill(t, first, 0, 0, 3); !reflect.DeepEqual(ids, []int32{0, 1, 2, 3, 1, 0}) || first.Shape().Experts != 9 {
		t.Errorf("without a layer: %v", ids)
	}
}

func TestRecordedRefuses(t *testing.T) {
	hash := func(m map[string]any, data []byte) []byte {
		m["sha256"] = fmt.Sprintf("%x", sha256.Sum256(data))
		return data
	}
	for name, a := range map[string]struct {
		change func(m map[string]any, data []byte) []byte
		spec   string
		shape  Shape
		want   string
	}{
		"truncated":     {change: func(_ map[string]any, d []byte) []byte { return d[:11] }, want: "has 11 bytes, its manifest says 12"},
		"longer":        {change: func(_ map[string]any, d []byte) []byte { return append(d, 0) }, want: "has 13 bytes"},
		"other bytes":   {change: func(m map[string]any, d []byte) []byte { m["bytes"] = 13; return append(d, 0) }, want: "are 12"},
		"changed":       {change: func(_ map[string]any, d []byte) []byte { d[3] = 1; return d }, want: "SHA-256 is"},
		"bad hash":      {change: func(m map[string]any, d []byte) []byte { m["sha256"] = ""; return d }, want: "SHA-256 is"},
		"big id":        {change: func(m map[string]any, d []byte) []byte { d[3] = 4; return hash(m, d) }, want: "layer 0, token 1, pick 1 is expert 4, the range is 0..3"},
		"no layer":      {spec: ":8", want: "layer 8 was not recorded, only [0 7] were"},
		"top_k":         {shape: Shape{TopK: 3}, want: "recorded with top_k 2, not 3"},
		"experts":       {shape: Shape{Experts: 3}, want: "recorded with 4 experts, there are only 3"},
		"zero tokens":   {change: func(m map[string]any, d []byte) []byte { m["tokens"] = 0; return d }, want: "at least 1 each"},
		"negative":      {change: func(m map[string]any, d []byte) []byte { m["tokens"], m["top_k"] = -3, -2; return d }, want: "at least 1 each"},
		"huge tokens":   {change: func(m map[string]any, d []byte) []byte { m["tokens"] = 1 << 62; return d }, want: "at most"},
		"wrong type":    {change: func(m map[string]any, d []byte) []byte { m["layers"] = "all"; return d }, want: "manifest.json"},
		"not listed":    {change: func(m map[string]any, d []byte) []byte { m["file"] = "b.u8"; return d }, want: "does not list a.u8"},
		"empty listing": {change: func(m map[string]any, d []byte) []byte { clear(m); return d }, want: "does not list a.u8"},
	} {
		shape := a.shape
		shape.Ranks = 1
		if _, err := Open(recordingDir(t, a.change)+a.spec, shape); err == nil || !strings.Contains(err.Error(), a.want) {
			t.Errorf("%s: %v, want %q", name, err, a.want)
		}
	}
	path := recordingDir(t, nil)
	if err := os.Remove(filepath.Join(filepath.Dir(path), "manifest.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, Shape{Ranks: 1}); err == nil || !strings.Contains(err.Error(), "needs the manifest.json beside it") {
		t.Errorf("no manifest: %v", err)
	}
	sparse := filepath.Join(t.TempDir(), "huge.jsonl")
	if err := os.WriteFile(sparse, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(sparse, maxLinesBytes+1); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(sparse, Shape{Ranks: 1, Experts: 1}); err == nil || !strings.Contains(err.Error(), "more than 16777216 bytes") {
		t.Errorf("a huge file: %v", err)
	}
}

const goodLines = `{"rank":1,"ids":[[0,-1],[3,3]],"weights":[[0.5,0.25],[1,2]]}

{"rank":0,"ids":[],"weights":[]}
`

func TestLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.jsonl")
	if err := os.WriteFile(path, []byte(goodLines), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, path, Shape{Ranks: 3, Experts: 4})
	if s.Tokens(0) != 0 || s.Tokens(1) != 2 || s.Tokens(2) != 0 || s.Tokens(3) != 0 || s.Shape().TopK != 2 {
		t.Errorf("tokens %d %d %d, shape %+v", s.Tokens(0), s.Tokens(1), s.Tokens(2), s.Shape())
	}
	ids, weights := fill(t, s, 1, 9, 2)
	if !reflect.DeepEqual(ids, []int32{0, -1, 3, 3}) || !reflect.DeepEqual(weights, []float32{.5, .25, 1, 2}) {
		t.Errorf("got %v %v", ids, weights)
	}
	if err := s.Fill(1, 0, make([]int32, 6), make([]float32, 6)); err != ErrFillTokens {
		t.Errorf("more tokens than the file holds: %v", err)
	}
}

func TestLinesRefuse(t *testing.T) {
	for name, a := range map[string]struct{ text, want string }{
		"empty":          {"\n\n", "holds no rank"},
		"no tokens":      {`{"rank":0,"ids":[],"weights":[]}`, "no token tells top_k"},
		"truncated":      {goodLines[:40], "line 1: ends too early"},
		"no rank":        {`{"ids":[[0]],"weights":[[1]]}`, "line 1: rank is missing"},
		"rank range":     {`{"rank":3,"ids":[[0]],"weights":[[1]]}`, "rank 3, the range is 0..2"},
		"rank twice":     {goodLines + `{"rank":1,"ids":[],"weights":[]}`, "line 4: rank 1 is already on line 1"},
		"ragged":         {`{"rank":0,"ids":[[0,1],[0]],"weights":[[1,1],[1]]}`, "token 1 has 1 ids and 1 weights, top_k is 2"},
		"ragged weights": {`{"rank":0,"ids":[[0,1]],"weights":[[1]]}`, "token 0 has 2 ids and 1 weights"},
		"lengths":        {`{"rank":0,"ids":[[0,1]],"weights":[]}`, "ids have 1 tokens, weights 0"},
		"id range":       {`{"rank":0,"ids":[[0,4]],"weights":[[1,1]]}`, "token 0, pick 1 is expert 4, the range is 0..3"},
		"negative id":    {`{"rank":0,"ids":[[0,-2]],"weights":[[1,1]]}`, "expert -2"},
		"null id":        {`{"rank":0,"ids":[[0,null]],"weights":[[1,1]]}`, "null is not allowed"},
		"float id":       {`{"rank":0,"ids":[[0.5]],"weights":[[1]]}`, "line 1"},
		"huge id":        {`{"rank":0,"ids":[[1e99]],"weights":[[1]]}`, "line 1"},
		"huge weight":    {`{"rank":0,"ids":[[1]],"weights":[[1e99]]}`, "line 1"},
		"unknown key":    {`{"rank":0,"ids":[[1]],"weights":[[1]],"layer":3}`, "layer"},
		"two on a line":  {`{"rank":0,"ids":[[1]],"weights":[[1]]} {}`, "something follows"},
		"deep":           {strings.Repeat("[", 100000), "line 1"},
		"zero wide":      {`{"rank":0,"ids":[[]],"weights":[[]]}`, "token 0 has 0 ids, the range of top_k is 1..256"},
	} {
		if _, err := parseLines("a.jsonl", []byte(a.text), Shape{Ranks: 3, Experts: 4}); err == nil || !strings.Contains(err.Error(), a.want) {
			t.Errorf("%s: %v, want %q", name, err, a.want)
		}
	}
	if _, err := parseLines("a.jsonl", []byte(goodLines), Shape{Ranks: 3}); err == nil || !strings.Contains(err.Error(), "number of experts must be given") {
		t.Errorf("no experts: %v", err)
	}
	_, err := parseLines("a.jsonl", []byte(`{"rank":7}`+"\n{\n"+`{"rank":0,"ids":[[9]],"weights":[[1]]}`), Shape{Ranks: 3, Experts: 4})
	if err == nil || strings.Count(err.Error(), "line ") != 3 {
		t.Errorf("want three faults, got: %v", err)
	}
}

func TestPlacement(t *testing.T) {
	for name, a := range map[string]struct {
		text  string
		layer int
		want  string
	}{
		"plain":            {"[[2,0],[],[1,3]]", -1, ""},
		"published":        {`{"model":null,"ranks":3,"layers":[[[9]],[[2,0],[],[1,3]]]}`, 1, ""},
		"published, first": {`{"layers":[[[2,0],[],[1,3]]]}`, -1, ""},
		"no such layer":    {`{"layers":[[[2,0],[],[1,3]]]}`, 1, "no layer 1, it has 1 layers"},
		"no layers":        {"[[2,0],[],[1,3]]", 0, "without layers"},
		"all faults":       {"[[2,2,4],[-1]]", -1, "has 2 lists, there are 3 ranks\n[0][1]: expert 2 is already on rank 0\n[0][2] is expert 4, the range is 0..3\n[1][0] is expert -1, the range is 0..3\nexpert 0 is on no rank\nexpert 1 is on no rank\nexpert 3 is on no rank"},
		"null":             {"[[2,null],[],[1,3]]", -1, "null is not allowed"},
		"truncated":        {"[[2,0],[],[1", -1, "unexpected end"},
		"trailing":         {"[[2,0],[],[1,3]] 1", -1, "after top-level"},
		"type":             {`[[2,"0"],[],[1,3]]`, -1, "cannot unmarshal"},
		"huge number":      {`[[2,1e30],[],[1,3]]`, -1, "cannot unmarshal"},
		"empty":            {"", -1, "unexpected end"},
		"deep":             {strings.Repeat("[", 100000), -1, "depth"},
		"many faults":      {"[[" + strings.Repeat("7,", 99) + "7],[],[]]", -1, "and 84 more"},
	} {
		got, err := parsePlacement([]byte(a.text), a.layer, 3, 4)
		if a.want == "" {
			if err != nil || !reflect.DeepEqual(got, [][]int32{{2, 0}, {}, {1, 3}}) {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), a.want) {
			t.Errorf("%s: %v, want %q", name, err, a.want)
		}
	}
	if _, err := parsePlacement([]byte("[]"), -1, 0, 1<<40); err == nil {
		t.Error("0 ranks were accepted")
	}
	path := filepath.Join(t.TempDir(), "p.json")
	if err := os.WriteFile(path, []byte(`{"layers":[[],[[0],[1]]]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadPlacement(path+":1", 2, 2); err != nil || !reflect.DeepEqual(got, [][]int32{{0}, {1}}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := ReadPlacement(path, 2, 2); err == nil || !strings.Contains(err.Error(), "p.json") {
		t.Errorf("layer 0: %v", err)
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte(goodLines), uint8(3), uint8(4))
	f.Add([]byte(`{"rank":0,"ids":[[1,2]],"weights":[[1,1e9]]}`), uint8(1), uint8(9))
	f.Fuzz(func(t *testing.T, text []byte, ranks, experts uint8) {
		shape := Shape{Ranks: int(ranks) + 1, Experts: int(experts) + 1}
		l, err := parseLines("f", text, shape)
		if err != nil {
			return
		}
		for rank := range shape.Ranks {
			n := l.Tokens(rank) * l.Shape().TopK
			ids, weights := make([]int32, n), make([]float32, n)
			if err := l.Fill(rank, 0, ids, weights); err != nil {
				t.Fatal(err)
			}
			for _, e := range ids {
				if e < -1 || int(e) >= shape.Experts {
					t.Fatalf("expert %d of %d", e, shape.Experts)
				}
			}
		}
	})
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"file":"a.u8","layers":[0],"tokens":1,"top_k":1,"experts":1,"bytes":1,"sha256":"6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"}`), []byte{0}, -1)
	f.Fuzz(func(t *testing.T, entry, data []byte, layer int) {
		var rec recording
		if json.Unmarshal(entry, &rec) != nil {
			return
		}
		if sum := sha256.Sum256(data); layer%2 == 0 { // let half of them past the hash
			rec.SHA256 = fmt.Sprintf("%x", sum)
		}
		s, err := newRecorded("a.u8", layer, Shape{Ranks: 3, MaxTokens: 2}, &rec, data)
		if err != nil {
			return
		}
		ids, weights := make([]int32, 5*s.shape.TopK), make([]float32, 5*s.shape.TopK)
		for round := range 3 {
			if err := s.Fill(2, round, ids, weights); err != nil {
				t.Fatal(err)
			}
			for _, e := range ids {
				if e < 0 || int(e) >= s.shape.Experts {
					t.Fatalf("expert %d of %d", e, s.shape.Experts)
				}
			}
		}
	})
}

func FuzzPlacement(f *testing.F) {
	f.Add([]byte("[[2,0],[],[1,3]]"), -1)
	f.Add([]byte(`{"layers":[[[2,0],[],[1,3]]]}`), 0)
	f.Fuzz(func(t *testing.T, text []byte, layer int) {
		place, err := parsePlacement(text, layer, 3, 4)
		if err != nil {
			return
		}
		n := 0
		for _, list := range place {
			n += len(list)
		}
		if len(place) != 3 || n != 4 {
			t.Fatalf("accepted %v", place)
		}
	})
}
