//go:build libfabric && cgo

package efa

import "testing"

func TestDiscoverFindsTheSoftwareProviders(t *testing.T) {
	d := Discover()
	if d.Err != nil {
		t.Fatal(d.Err)
	}
	t.Logf("%s %s (headers %s)", d.Library, d.Version, d.Headers)
	for _, f := range d.Providers {
		t.Logf("%s on %v: %v\n   %+v\n   missing %q", f.Name, f.Devices, f.Err, f.Features, f.Missing)
	}
}
