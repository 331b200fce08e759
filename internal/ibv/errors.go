//go:build verbs && cgo && linux

package ibv

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrNoLibrary is Open's where libibverbs.so.1 is missing or too old.
var ErrNoLibrary = errors.New("ibv: libibverbs.so.1 can not be used")

// CallError is a libibverbs call that failed. errors.Is finds the errno.
type CallError struct {
	Call  string // as in the manual, such as "ibv_create_qp"
	Errno unix.Errno
}

func (e *CallError) Error() string {
	return fmt.Sprintf("%s: %s (%s, errno %d)", e.Call, e.Errno.Error(), unix.ErrnoName(e.Errno), int(e.Errno))
}

// Unwrap returns the errno.
func (e *CallError) Unwrap() error { return e.Errno }

// errnoOf reads what cgo reports beside a result.
func errnoOf(err error) unix.Errno {
	if e, ok := err.(unix.Errno); ok {
		return e
	}
	return 0
}

// failed makes an error of an errno; 0 is none.
func failed(call string, errno int) error {
	if errno == 0 {
		return nil
	}
	return &CallError{Call: call, Errno: unix.Errno(errno)}
}
