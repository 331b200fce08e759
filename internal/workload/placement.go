package workload

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// ReadPlacement reads which physical experts each rank holds, in the rank's own
// order, from a JSON file in one of two forms:
//
//	[[0,1],[2,3],...]                   one list per rank
//	{"layers":[[[0,1],[2,3],...],...]}  the same for each MoE layer; other keys
//	                                    are not read
//
// The second is the form in which computed placements are published; spec then
// ends in :LAYER, an index into layers, 0 if left out. Each of the experts must
// be on exactly one rank; a rank may have none. All faults are reported at once,
// at most 20.
func ReadPlacement(spec string, ranks, experts int) ([][]int32, error) {
	path, layer := splitLayer(spec)
	data, err := readFile(path, maxPlacementBytes)
	if err != nil {
		return nil, err
	}
	place, err := parsePlacement(data, layer, ranks, experts)
	if err != nil {
		return nil, fmt.Errorf("workload: placement %s: %w", path, err)
	}
	return place, nil
}

func parsePlacement(data []byte, layer, ranks, experts int) ([][]int32, error) {
	if ranks < 1 || ranks > MaxRanks || experts < 1 || experts > MaxExperts {
		return nil, fmt.Errorf("%d ranks and %d experts, the ranges are 1..%d and 1..%d", ranks, experts, MaxRanks, MaxExperts)
	}
	var place [][]int32
	if text := bytes.TrimLeft(data, " \t\r\n"); len(text) > 0 && text[0] == '{' {
		var published struct {
			Layers []json.RawMessage `json:"layers"`
		}
		if err := json.Unmarshal(data, &published); err != nil {
			return nil, err
		}
		layer = max(layer, 0)
		if layer >= len(published.Layers) {
			return nil, fmt.Errorf("has no layer %d, it has %d layers", layer, len(published.Layers))
		}
		data = published.Layers[layer]
	} else if layer >= 0 {
		return nil, fmt.Errorf("layer %d asked of a file without layers", layer)
	}
	if bytes.Contains(data, []byte("null")) { // which would pass for 0
		return nil, errors.New("null is not allowed")
	}
	if err := json.Unmarshal(data, &place); err != nil {
		return nil, err
	}
	return place, placementFaults(place, ranks, experts)
}

func placementFaults(place [][]int32, ranks, experts int) error {
	var faults []error
	more := 0
	fault := func(format string, args ...any) {
		if len(faults) == 20 {
			more++
			return
		}
		faults = append(faults, fmt.Errorf(format, args...))
	}
	if len(place) != ranks {
		fault("has %d lists, there are %d ranks", len(place), ranks)
	}
	on := make([]int, experts) // 1 + the rank that has the expert
	for q, list := range place {
		for i, e := range list {
			switch {
			case e < 0 || int(e) >= experts:
				fault("[%d][%d] is expert %d, the range is 0..%d", q, i, e, experts-1)
			case on[e] != 0:
				fault("[%d][%d]: expert %d is already on rank %d", q, i, e, on[e]-1)
			default:
				on[e] = q + 1
			}
		}
	}
	for e, q := range on {
		if q == 0 {
			fault("expert %d is on no rank", e)
		}
	}
	if more > 0 {
		faults = append(faults, fmt.Errorf("and %d more", more))
	}
	return errors.Join(faults...)
}
