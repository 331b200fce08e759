// Package efa is the transport over libfabric: AWS EFA in production, and
// libfabric's software providers (TCP, shared memory) wherever there is none.
//
// It is compiled in by the build tag libfabric, which needs cgo and libfabric's
// headers. Without the tag every name is here too, and New and Discover say
// that the build has none. The library itself is opened at run time, so that a
// program with the tag starts on a machine that lacks it.
package efa
