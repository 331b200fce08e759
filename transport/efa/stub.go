//go:build !libfabric || !cgo

package efa

import "moerail/transport"

// Built tells whether libfabric support was compiled in.
const Built = false

// Provider is never made in this build.
type Provider struct{ transport.Provider }

// New fails with ErrNotBuilt.
func New(Config) (*Provider, error) { return nil, ErrNotBuilt }

// Discover reports ErrNotBuilt.
func Discover() Discovery { return Discovery{Err: ErrNotBuilt, Remedy: remedyBuild} }
