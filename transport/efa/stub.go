//go:build !libfabric

package efa

import "moerail/transport"

// Built says whether libfabric was compiled in.
const Built = false

// Provider opens domains of one of libfabric's providers. This build has none,
// so that no value of it is ever handed out and the zero value refuses all.
type Provider struct{}

var _ transport.Provider = (*Provider)(nil)

// New fails with ErrNotBuilt.
func New(Config) (*Provider, error) { return nil, ErrNotBuilt }

// Discover finds ErrNotBuilt.
func Discover() Discovery {
	return Discovery{Err: ErrNotBuilt, Remedy: "apt-get install libfabric-dev gcc, then go build -tags libfabric"}
}

// Name is "libfabric".
func (*Provider) Name() string { return "libfabric" }

// NICs are none.
func (*Provider) NICs() []transport.NIC { return nil }

// Open fails with ErrNotBuilt.
func (*Provider) Open(string, transport.DomainConfig) (transport.Domain, error) {
	return nil, ErrNotBuilt
}

// Alloc fails with ErrNotBuilt.
func (*Provider) Alloc(uint64) (transport.Memory, error) { return transport.Memory{}, ErrNotBuilt }

// Free fails with ErrNotBuilt.
func (*Provider) Free(transport.Memory) error { return ErrNotBuilt }
