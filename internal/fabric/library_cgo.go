//go:build libfabric && cgo

package fabric

/*
#cgo CFLAGS: -O2 -Wall
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"unsafe"
)

// DefaultLibrary is what is opened when no path is given.
const DefaultLibrary = "libfabric.so.1"

// HeaderVersion is the version of the headers that this build was compiled with.
func HeaderVersion() string {
	return fmt.Sprintf("%d.%d", C.FI_MAJOR_VERSION, C.FI_MINOR_VERSION)
}

// Library is an opened libfabric. It stays open for the life of the process:
// providers keep threads and exit handlers in it.
type Library struct{ c *C.moe_lib }

var libraries struct {
	sync.Mutex
	byPath map[string]*Library
}

// Open opens the library at path, or DefaultLibrary if empty. Opening the same
// path again gives the same Library.
func Open(path string) (*Library, error) {
	if path == "" {
		path = DefaultLibrary
	}
	libraries.Lock()
	defer libraries.Unlock()
	if l := libraries.byPath[path]; l != nil {
		return l, nil
	}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	why := (*C.char)(C.calloc(1, 1024))
	defer C.free(unsafe.Pointer(why))
	c := (*C.moe_lib)(C.calloc(1, C.sizeof_moe_lib))
	if C.moe_lib_open(c, name, why, 1024) != 0 {
		C.free(unsafe.Pointer(c))
		return nil, fmt.Errorf("open %s: %s", path, C.GoString(why))
	}
	l := &Library{c}
	if libraries.byPath == nil {
		libraries.byPath = map[string]*Library{}
	}
	libraries.byPath[path] = l
	return l, nil
}

// Path is the file that was opened.
func (l *Library) Path() string { return C.GoString(&l.c.path[0]) }

// Version is the library's own, "1.17".
func (l *Library) Version() string {
	return fmt.Sprintf("%d.%d", l.c.version>>16, l.c.version&0xffff)
}

// Error is a call of libfabric that failed.
type Error struct {
	Call  string
	Errno uint32
	Text  string // libfabric's own text for Errno
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (errno %d)", e.Call, e.Text, e.Errno) }

// ErrnoText is libfabric's own text for an errno.
func (l *Library) ErrnoText(errno uint32) string {
	if text := C.moe_strerror(l.c, C.int(errno)); text != nil {
		return C.GoString(text)
	}
	return "unknown error"
}

func (l *Library) fail(call string, err C.int) error {
	return &Error{Call: call, Errno: uint32(err), Text: l.ErrnoText(uint32(err))}
}

func (l *Library) failStep(step, err C.int) error {
	return l.fail(C.GoString(C.moe_step_name(step)), err)
}
