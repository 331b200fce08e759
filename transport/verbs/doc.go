// Package verbs is the transport over libibverbs: reliable connections of RDMA
// NICs, InfiniBand or RoCE.
//
// It is compiled in by the build tag verbs, which needs cgo and libibverbs'
// headers. Without the tag every name is here too, and New and Discover say
// that the build has none. The library itself is opened at run time, so that a
// program with the tag starts on a machine that lacks it.
package verbs
