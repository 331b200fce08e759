package engine

import (
	"errors"
	"fmt"

	"moerail/transport"
)

var (
	ErrClosed       = errors.New("engine: closed")
	ErrCancelled    = errors.New("engine: transfer cancelled")
	ErrConfig       = errors.New("engine: invalid configuration")
	ErrForeign      = errors.New("engine: handle belongs to another engine or was closed")
	ErrNICMismatch  = errors.New("engine: peer has another number of NICs")
	ErrHole         = errors.New("engine: group entry is a hole")
	ErrImmClaimed   = errors.New("engine: immediate is already claimed")
	ErrRemoteAccess = errors.New("engine: remote access refused")
	ErrTruncated    = errors.New("engine: message longer than the receive buffer")
	ErrFault        = errors.New("engine: operation failed")
	ErrNICFailed    = errors.New("engine: NIC failed")
	ErrMalformed    = errors.New("engine: malformed encoding")
	ErrArgument     = errors.New("engine: invalid argument")
)

// NoEntry stands in a TransferError that is not about an entry of a peer group.
const NoEntry = -1

// TransferError says which operation of a transfer failed first. It unwraps to
// a sentinel of this package or of transport.
type TransferError struct {
	Op     transport.Opcode
	Entry  int            // of the peer group, or NoEntry
	Peer   transport.Peer // the domain's handle, or NoPeer
	NIC    string
	Status transport.Status // how it ended; StatusOK if it was refused before it was posted
	Vendor uint32           // the device's own code, 0 if none
	Err    error
}

func (e *TransferError) Error() string {
	s := fmt.Sprintf("engine: %s on NIC %s", e.Op, e.NIC)
	if e.Entry != NoEntry {
		s += fmt.Sprintf(" to group entry %d", e.Entry)
	}
	if e.Peer != transport.NoPeer {
		s += fmt.Sprintf(" to peer %d", e.Peer)
	}
	if e.Status != transport.StatusOK {
		s += fmt.Sprintf(": status %q (vendor %#x)", e.Status.String(), e.Vendor)
	}
	return fmt.Sprintf("%s: %v", s, e.Err)
}

func (e *TransferError) Unwrap() error { return e.Err }

func statusError(s transport.Status) error {
	switch s {
	case transport.StatusRemoteAccess:
		return ErrRemoteAccess
	case transport.StatusPeerLost:
		return transport.ErrPeerLost
	case transport.StatusTruncated:
		return ErrTruncated
	default:
		return ErrFault
	}
}
