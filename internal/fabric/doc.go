// Package fabric is the fence round libfabric: everything that is C stands
// here, and nothing above it sees a C pointer. It is compiled with the build tag
// libfabric alone; transport/efa is its one user.
//
// The library is opened at run time, by dlopen, with the symbol versions that
// belong to the headers it was compiled with (shim_library.c). A binary with the
// tag so starts on a machine without the library.
//
//	Library   one opened libfabric
//	Info      one thing that a provider offers, as fi_getinfo says it
//	Domain    fabric, domain, address vector, completion queue, endpoint
//	Slot      one operation in C memory: its context, its descriptor, its inline bytes
//
// A Domain's owner fills slots, writes their numbers into a ring, and calls
// Progress: one crossing that posts what the ring holds, tries again what a
// provider could not take earlier, and reads completions (shim_progress.c). Slots,
// rings and completions are C memory that both sides see, so nothing is copied
// at the crossing and no Go pointer goes to C.
package fabric
