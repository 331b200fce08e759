//go:build libfabric && cgo

package efa

import "testing"

func TestDiscoverFindsTheSoftwareProviders(t *testing.T) {
	d := Discover()
	if d.Err != nil {
		t.Fatal(d.Err)
	}
	t.Logf("%s %s (headers %s)", d.Library, d.Version, d.Headers)
	found := map[string]bool{}
	for _, f := range d.Providers {
		found[f.Name] = f.Err == nil && f.Features.Tried && f.Features.ImmBytes >= 4
		t.Logf("%s on %v: %v\n   %+v\n   missing %q", f.Name, f.Devices, f.Err, f.Features, f.Missing)
	}
	for _, s := range softwareProviders {
		if !found[s.name] {
			t.Errorf("%s is not found, or does not carry immediates", s.name)
		}
	}
}
