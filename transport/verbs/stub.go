//go:build !verbs

package verbs

import "moerail/transport"

// Built says whether libibverbs was compiled in.
const Built = false

// Provider opens domains of RDMA devices. This build has none,
// so that no value of it is ever handed out and the zero value refuses all.
type Provider struct{}

var _ transport.Provider = (*Provider)(nil)

// New fails with ErrNotBuilt.
func New(Config) (*Provider, error) { return nil, ErrNotBuilt }

// Discover finds ErrNotBuilt.
func Discover() Discovery {
	return Discovery{Err: ErrNotBuilt, Remedy: "apt-get install libibverbs-dev gcc, then go build -tags verbs"}
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

// Free fails with ErrNotBuilt.
func (*Provider) Free(transport.Memory) error { return ErrNotBuilt }
