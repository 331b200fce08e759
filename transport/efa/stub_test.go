//go:build !libfabric || !cgo

package efa

import (
	"errors"
	"testing"
)

func TestThisBuildSaysWhatIsMissing(t *testing.T) {
	if p, err := New(Config{}); p != nil || !errors.Is(err, ErrNotBuilt) {
		t.Errorf("New gives %v, %v", p, err)
	}
	if d := Discover(); Built || !errors.Is(d.Err, ErrNotBuilt) || d.Remedy == "" {
		t.Errorf("Built %v, Discover %+v", Built, d)
	}
}
