//go:build !verbs

package verbs

import (
	"errors"
	"strings"
	"testing"

	"moerail/transport"
)

// A build without libibverbs says so, and how to get one that has it.
func TestNotInThisBuild(t *testing.T) {
	p, err := New(Config{GIDIndex: -1})
	if p != nil || !errors.Is(err, ErrNotBuilt) || !strings.Contains(err.Error(), "-tags verbs") {
		t.Errorf("New gave %v, %v", p, err)
	}
	if d := Discover(); !errors.Is(d.Err, ErrNotBuilt) || d.Remedy == "" || len(d.Devices) != 0 {
		t.Errorf("Discover found %+v", d)
	}
	var zero Provider
	if _, err := zero.Open("mlx5_0", transport.DomainConfig{}); !errors.Is(err, ErrNotBuilt) {
		t.Errorf("Open: %v", err)
	}
	if _, err := zero.Alloc(1); !errors.Is(err, ErrNotBuilt) {
		t.Errorf("Alloc: %v", err)
	}
	if err := zero.Free(transport.Memory{}); !errors.Is(err, ErrNotBuilt) {
		t.Errorf("Free: %v", err)
	}
}
