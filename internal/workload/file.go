package workload

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Largest files that are read.
const (
	maxRecordedBytes  = 256 << 20
	maxManifestBytes  = 1 << 20
	maxLinesBytes     = 16 << 20
	maxPlacementBytes = 4 << 20
)

// splitLayer takes a trailing :NUMBER off a file name; layer is -1 without one.
func splitLayer(spec string) (path string, layer int) {
	at := strings.LastIndexByte(spec, ':')
	if at < 0 {
		return spec, -1
	}
	n, err := strconv.ParseUint(spec[at+1:], 10, 31)
	if err != nil {
		return spec, -1
	}
	return spec[:at], int(n)
}

func openFile(spec string, shape Shape) (Source, error) {
	path, layer := splitLayer(spec)
	if strings.HasSuffix(path, ".u8") {
		return openRecorded(path, layer, shape)
	}
	if layer >= 0 {
		return nil, fmt.Errorf("workload: %s: only a .u8 file has layers", clip(spec))
	}
	return openLines(path, shape)
}

// readFile reads a whole regular file of at most limit bytes.
func readFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) && !strings.ContainsAny(path, "./") {
			return nil, fmt.Errorf("workload: %q is neither uniform, zipf:S, one:EXPERT nor a file", clip(path))
		}
		return nil, fmt.Errorf("workload: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("workload: %s is not a regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("workload: %s has more than %d bytes", path, limit)
	}
	return data, nil
}

// recording is one entry of manifest.json: a file of raw uint8
// [layer][token][k], row-major, without a header.
type recording struct {
	File    string `json:"file"`
	Layers  []int  `json:"layers"` // MoE layer numbers, in file order
	Tokens  int    `json:"tokens"` // per layer
	TopK    int    `json:"top_k"`
	Experts int    `json:"experts"`
	Bytes   int64  `json:"bytes"`
	SHA256  string `json:"sha256"`
}

// recorded is one layer of a recording. Rank p's tokens in round n are the
// MaxTokens tokens that follow each other in the recording from number
// (n*Ranks + p) * MaxTokens on, and it starts again at its end: ranks and rounds
// take the text in order, without a gap or an overlap until it is used up.
type recorded struct {
	name  string
	shape Shape
	picks []byte // [tokens, TopK]
}

// openRecorded reads one layer of a .u8 file by the manifest.json beside it.
// The file is refused if it is not exactly what the manifest says (size, hash),
// if an expert is out of range, or if shape asks for another TopK or for fewer
// experts.
func openRecorded(path string, layer int, shape Shape) (Source, error) {
	rec, err := findRecording(path)
	if err != nil {
		return nil, err
	}
	data, err := readFile(path, maxRecordedBytes)
	if err != nil {
		return nil, err
	}
	return newRecorded(path, layer, shape, rec, data)
}

func findRecording(path string) (*recording, error) {
	manifest := filepath.Join(filepath.Dir(path), "manifest.json")
	text, err := readFile(manifest, maxManifestBytes)
	if err != nil {
		return nil, fmt.Errorf("%w (a .u8 file needs the manifest.json beside it)", err)
	}
	var list struct {
		Files []recording `json:"files"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("workload: %s: %w", manifest, err)
	}
	base := filepath.Base(path)
	at := slices.IndexFunc(list.Files, func(r recording) bool { return filepath.Base(filepath.FromSlash(r.File)) == base })
	if at < 0 {
		return nil, fmt.Errorf("workload: %s does not list %s", manifest, base)
	}
	return &list.Files[at], nil
}

func newRecorded(path string, layer int, shape Shape, rec *recording, data []byte) (*recorded, error) {
	if err := rec.check(path, shape, int64(len(data))); err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); !strings.EqualFold(hex.EncodeToString(sum[:]), rec.SHA256) {
		return nil, fmt.Errorf("workload: %s: SHA-256 is %x, its manifest says %s", path, sum, clip(rec.SHA256))
	}
	index := 0
	if layer >= 0 {
		if index = slices.Index(rec.Layers, layer); index < 0 {
			return nil, fmt.Errorf("workload: %s: layer %d was not recorded, only %v were", path, layer, rec.Layers)
		}
	}
	size := rec.Tokens * rec.TopK
	picks := data[index*size : (index+1)*size]
	for i, e := range picks {
		if int(e) >= rec.Experts {
			return nil, fmt.Errorf("workload: %s: layer %d, token %d, pick %d is expert %d, the range is 0..%d",
				path, rec.Layers[index], i/rec.TopK, i%rec.TopK, e, rec.Experts-1)
		}
	}
	if shape.Experts == 0 {
		shape.Experts = rec.Experts
	}
	shape.TopK = rec.TopK
	name := fmt.Sprintf("%s:%d", path, rec.Layers[index])
	return &recorded{name: name, shape: shape, picks: picks}, nil
}

// check reports every fault of a manifest entry, and of a shape that does not fit it.
func (r *recording) check(path string, shape Shape, size int64) error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("workload: %s: "+format, append([]any{path}, args...)...))
	}
	if len(r.Layers) < 1 || r.Tokens < 1 || r.Tokens > maxRecordedBytes || r.TopK < 1 || r.TopK > MaxTopK || r.Experts < 1 || r.Experts > 256 {
		fault("manifest has %d layers, %d tokens, top_k %d, experts %d: at least 1 each, at most %d tokens, top_k %d, 256 experts",
			len(r.Layers), r.Tokens, r.TopK, r.Experts, maxRecordedBytes, MaxTopK)
	} else if want := int64(len(r.Layers)) * int64(r.Tokens) * int64(r.TopK); want != size || r.Bytes != size {
		fault("has %d bytes, its manifest says %d and %d layers x %d tokens x top_k %d are %d", size, r.Bytes, len(r.Layers), r.Tokens, r.TopK, want)
	}
	if shape.TopK != 0 && shape.TopK != r.TopK {
		fault("was recorded with top_k %d, not %d", r.TopK, shape.TopK)
	}
	if shape.Experts != 0 && shape.Experts < r.Experts {
		fault("was recorded with %d experts, there are only %d", r.Experts, shape.Experts)
	}
	return errors.Join(faults...)
}

func (r *recorded) Tokens(int) int { return -1 }
func (r *recorded) Shape() Shape   { return r.shape }
func (r *recorded) String() string { return r.name }

func (r *recorded) Fill(rank, round int, ids []int32, weights []float32) error {
	if err := r.shape.check(rank, round, ids, weights); err != nil {
		return err
	}
	tokens := uint64(len(r.picks) / r.shape.TopK)
	window := uint64(round)*uint64(r.shape.Ranks) + uint64(rank)
	at := int(window%tokens*(uint64(r.shape.MaxTokens)%tokens)%tokens) * r.shape.TopK
	for i := range ids {
		if at == len(r.picks) {
			at = 0
		}
		ids[i] = int32(r.picks[at])
		at++
	}
	r.shape.fillWeights(rank, round, weights)
	return nil
}

// lines is routing that a JSON Lines file gives outright, the same every round.
type lines struct {
	path  string
	shape Shape
	ranks []rankLine // [Ranks]
}

type rankLine struct {
	ids     []int32 // [T, TopK]
	weights []float32
}

// openLines reads JSON Lines, one line for each rank that has tokens:
//
//	{"rank":0,"ids":[[...TopK],...T],"weights":[[...TopK],...T]}
//
// Ranks without a line have no tokens. Ids are -1 or 0..Experts-1; every fault
// of every line is reported, at most 20. shape must say Experts; TopK 0 is taken
// from the first token of the file.
func openLines(path string, shape Shape) (Source, error) {
	data, err := readFile(path, maxLinesBytes)
	if err != nil {
		return nil, err
	}
	return parseLines(path, data, shape)
}

func parseLines(path string, data []byte, shape Shape) (*lines, error) {
	if shape.Experts == 0 {
		return nil, fmt.Errorf("workload: %s: the number of experts must be given with JSON Lines", path)
	}
	l := &lines{path: path, shape: shape, ranks: make([]rankLine, shape.Ranks)}
	var faults []error
	seen := map[int]int{}
	for n := 1; len(data) > 0 && len(faults) < 20; n++ {
		line, rest, _ := bytes.Cut(data, []byte("\n"))
		data = rest
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if err := l.line(line, n, seen); err != nil {
			faults = append(faults, fmt.Errorf("workload: %s: line %d: %w", path, n, err))
		}
	}
	if len(seen) == 0 && len(faults) == 0 {
		faults = append(faults, fmt.Errorf("workload: %s holds no rank", path))
	}
	if len(faults) == 0 && l.shape.TopK == 0 {
		faults = append(faults, fmt.Errorf("workload: %s: no token tells top_k", path))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *lines) line(text []byte, number int, seen map[int]int) error {
	var in struct {
		Rank    *int        `json:"rank"`
		IDs     [][]int32   `json:"ids"`
		Weights [][]float32 `json:"weights"`
	}
	if bytes.Contains(text, []byte("null")) { // which would pass for 0
		return errors.New("null is not allowed")
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return errors.New("ends too early")
		}
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("something follows the object")
	}
	if in.Rank == nil {
		return errors.New("rank is missing")
	}
	rank := *in.Rank
	if rank < 0 || rank >= l.shape.Ranks {
		return fmt.Errorf("rank %d, the range is 0..%d", rank, l.shape.Ranks-1)
	}
	if before, twice := seen[rank]; twice {
		return fmt.Errorf("rank %d is already on line %d", rank, before)
	}
	seen[rank] = number
	if len(in.IDs) != len(in.Weights) {
		return fmt.Errorf("ids have %d tokens, weights %d", len(in.IDs), len(in.Weights))
	}
	for t, ids := range in.IDs {
		if l.shape.TopK == 0 {
			if len(ids) < 1 || len(ids) > MaxTopK {
				return fmt.Errorf("token %d has %d ids, the range of top_k is 1..%d", t, len(ids), MaxTopK)
			}
			l.shape.TopK = len(ids)
		}
		if k := l.shape.TopK; len(ids) != k || len(in.Weights[t]) != k {
			return fmt.Errorf("token %d has %d ids and %d weights, top_k is %d", t, len(ids), len(in.Weights[t]), k)
		}
		for k, e := range ids {
			if e < -1 || int(e) >= l.shape.Experts {
				return fmt.Errorf("token %d, pick %d is expert %d, the range is 0..%d, -1 for none", t, k, e, l.shape.Experts-1)
			}
		}
	}
	l.ranks[rank] = rankLine{slices.Concat(in.IDs...), slices.Concat(in.Weights...)}
	return nil
}

func (l *lines) Shape() Shape   { return l.shape }
func (l *lines) String() string { return l.path }

func (l *lines) Tokens(rank int) int {
	if rank < 0 || rank >= len(l.ranks) {
		return 0
	}
	return len(l.ranks[rank].ids) / l.shape.TopK
}

func (l *lines) Fill(rank, round int, ids []int32, weights []float32) error {
	if err := l.shape.check(rank, round, ids, weights); err != nil {
		return err
	}
	if len(ids) > len(l.ranks[rank].ids) {
		return ErrFillTokens
	}
	copy(ids, l.ranks[rank].ids)
	copy(weights, l.ranks[rank].weights)
	return nil
}
