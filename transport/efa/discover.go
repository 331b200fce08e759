//go:build libfabric && cgo

package efa

import (
	"fmt"
	"slices"

	"moerail/internal/fabric"
)

// Discover looks at what this machine's libfabric offers. It never fails: what
// went wrong is in the result. Providers of which crashes are not known are tried
// as New tries them.
func Discover() Discovery { return discover("") }

// tried lists the providers that Discover opens; others are described by what
// they say of themselves, for not all survive being opened.
var tried = []string{"efa", "tcp", "tcp;ofi_rxm", "net", "shm"}

func discover(path string) Discovery {
	d := Discovery{Headers: fabric.HeaderVersion()}
	lib, err := openLibrary(path, defaultProvider)
	if err != nil {
		d.Err, d.Remedy = err, remedyLibrary
		return d
	}
	d.Library, d.Version = lib.Path(), lib.Version()
	names, err := providers(lib)
	if err != nil {
		d.Err = fmt.Errorf("%w: %w", ErrNoProvider, err)
		d.Remedy = "an EFA device needs its kernel module and a libfabric with the efa provider; software providers come with Debian's libfabric1"
		return d
	}
	for _, name := range names {
		d.Providers = append(d.Providers, find(lib, name))
	}
	return d
}

func find(lib *fabric.Library, name string) Found {
	f := Found{Name: name}
	found, err := offers(lib, name, false)
	if err != nil {
		f.Err = err
		return f
	}
	for _, o := range found {
		f.Devices = append(f.Devices, o.info.Domain)
	}
	if slices.Contains(tried, name) {
		f.Err = found[0].try(lib)
	}
	f.Features, f.Missing = found[0].features, found[0].missing
	return f
}

// providers names everything with reliable datagrams and remote memory access,
// EFA first, else in the library's order.
func providers(lib *fabric.Library) ([]string, error) {
	infos, err := lib.Infos(fabric.Hints{Caps: baseCaps, Mode: baseMode | fabric.ModeRxCQData, MRMode: everyMRMode})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, i := range infos {
		if !slices.Contains(names, i.Provider) {
			names = append(names, i.Provider)
		}
	}
	slices.SortStableFunc(names, func(a, b string) int {
		switch {
		case a == defaultProvider && b != defaultProvider:
			return -1
		case b == defaultProvider && a != defaultProvider:
			return 1
		}
		return 0
	})
	return names, nil
}
