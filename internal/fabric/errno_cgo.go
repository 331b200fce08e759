//go:build libfabric && cgo

package fabric

/*
#include <errno.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"moerail/transport"
)

// Errnos that callers act on.
const (
	ErrnoNoKey    = C.FI_ENOKEY
	ErrnoCanceled = C.FI_ECANCELED
	ErrnoNoData   = C.FI_ENODATA
	ErrnoTimedOut = C.FI_ETIMEDOUT
	ErrnoInvalid  = C.FI_EINVAL
)

// Classify says what an errno of an operation means to its poster.
func Classify(errno uint32) transport.Status {
	switch errno {
	case 0:
		return transport.StatusOK
	case C.FI_EACCES, C.FI_EPERM, C.FI_ENOKEY, C.FI_EKEYREJECTED, C.FI_EFAULT, C.ERANGE:
		return transport.StatusRemoteAccess
	case C.FI_ETRUNC, C.FI_EMSGSIZE, C.FI_ETOOSMALL:
		return transport.StatusTruncated
	case C.FI_ECANCELED:
		return transport.StatusFlushed
	}
	return transport.StatusFault
}

// AddressText is an endpoint's address as people write it.
func AddressText(format uint32, addr []byte) string {
	switch {
	case format == FormatSockaddrIn && len(addr) >= unix.SizeofSockaddrInet4:
		return fmt.Sprintf("%v:%d", net.IP(addr[4:8]), int(addr[2])<<8|int(addr[3]))
	case format == FormatSockaddrIn6 && len(addr) >= unix.SizeofSockaddrInet6:
		return fmt.Sprintf("[%v]:%d", net.IP(addr[8:24]), int(addr[2])<<8|int(addr[3]))
	case format == FormatEFA && len(addr) >= 18:
		return fmt.Sprintf("[%v] queue pair %d", net.IP(addr[:16]), int(addr[16])|int(addr[17])<<8)
	}
	return fmt.Sprintf("%x", addr)
}
