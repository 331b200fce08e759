package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

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
