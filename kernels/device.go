// Package kernels is what a device must do for a round: four stages on an
// in-order stream, described by the structs of kernels/abi. kernels/host runs
// them on the CPU; the CUDA device launches the same stages as kernels.
package kernels

import "moerail/kernels/abi"

// Device makes streams.
type Device interface {
	Name() string
	// Bumps tells whether bump is called for every word that a stage writes, so
	// that a proxy need not poll for them.
	Bumps() bool
	// NewStream starts a stream. bump is called from any goroutine after a stage
	// wrote words that a proxy polls, so that a parked proxy wakes; it must not
	// block. A device whose proxy polls anyway may never call it.
	NewStream(bump func()) (Stream, error)
}

// Stream runs stages one after the other, asynchronously. Launches copy their
// params; the memory they name stays the caller's and must live until the stage
// ended. Launches and Sync are called by one goroutine at a time; Notify and
// Close by any.
type Stream interface {
	DispatchSend(p *abi.DispatchSendParams) error
	DispatchRecv(p *abi.DispatchRecvParams) error
	CombineSend(p *abi.CombineSendParams) error
	CombineRecv(p *abi.CombineRecvParams) error
	// Sync returns when every stage launched before has ended. It has no deadline
	// of its own: a stage's waits end by Control.Abort or Control.Stop.
	Sync()
	// Notify says that the proxy, or a peer, wrote a word that a stage may wait for.
	Notify()
	// Close ends a running stage with CodeStopped, drops those queued, and waits
	// for the stream to be idle. Idempotent.
	Close() error
}
