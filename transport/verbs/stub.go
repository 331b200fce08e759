//go:build !(verbs && cgo && linux)

package verbs

import "moerail/transport"

// Built tells whether libibverbs support was compiled in.
const Built = false

// Provider is never made in this build.
type Provider struct{}

var _ transport.Provider = (*Provider)(nil)

// New fails with ErrNotBuilt.
func New(Config) (*Provider, error) { return nil, ErrNotBuilt }

// Discover says that there is nothing, and why.
func Discover() Discovery {
	return Discovery{Err: ErrNotBuilt, Remedy: "rebuild with -tags verbs"}
}

// Name is "verbs".
func (*Provider) Name() string { return "verbs" }

// NICs are none.
func (*Provider) NICs() []transport.NIC { return nil }

// Open fails with ErrNotBuilt.
func (*Provider) Open(string, transport.DomainConfig) (transport.Domain, error) {
	return nil, ErrNotBuilt
}

// Alloc fails with ErrNotBuilt.
func (*Provider) Alloc(uint64) (transport.Memory, error) { return transport.Memory{}, ErrNotBuilt }

// Free has nothing to release.
func (*Provider) Free(transport.Memory) error { return nil }

// VendorText says that no completion comes from this build.
func VendorText(uint32) string { return "no completion of this build" }
