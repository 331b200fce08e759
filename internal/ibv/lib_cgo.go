//go:build verbs && cgo && linux

package ibv

/*
#cgo LDFLAGS: -ldl
#cgo noescape moerail_step_run
#cgo nocallback moerail_step_run
#include "table.h"
#include <stdlib.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"unsafe"
)

// Lib is a table of libibverbs calls.
type Lib struct {
	t       *C.struct_moerail_ibv
	path    string
	version string
}

var open struct {
	once sync.Once
	lib  *Lib
	err  error
}

// Open loads libibverbs once; later calls return the same. It fails with
// ErrNoLibrary and what the loader said. Safe for concurrent use.
func Open() (*Lib, error) {
	open.once.Do(func() {
		t := (*C.struct_moerail_ibv)(C.calloc(1, C.sizeof_struct_moerail_ibv))
		if t == nil {
			open.err = errors.New("ibv: no memory")
			return
		}
		var msg, path [1024]C.char
		if C.moerail_load(t, &msg[0], C.size_t(len(msg)), &path[0], C.size_t(len(path))) != 0 {
			C.free(unsafe.Pointer(t))
			open.err = fmt.Errorf("%w: %s", ErrNoLibrary, C.GoString(&msg[0]))
			return
		}
		l := &Lib{t: t, path: C.GoString(&path[0])}
		if real, err := filepath.EvalSymlinks(l.path); err == nil {
			l.path = real
		}
		_, l.version, _ = strings.Cut(filepath.Base(l.path), ".so.")
		open.lib = l
	})
	return open.lib, open.err
}

// FromTable makes a Lib of another table of calls, a struct moerail_ibv that
// stays valid while the Lib is in use: tests replace calls with it.
func FromTable(t unsafe.Pointer, name string) *Lib {
	return &Lib{t: (*C.struct_moerail_ibv)(t), path: name, version: "fake"}
}

// Path is the file that was loaded.
func (l *Lib) Path() string { return l.path }

// Version is what the file's name says, such as "1.14.44.0": the ABI, then the
// version of rdma-core.
func (l *Lib) Version() string { return l.version }

// HasDMABuf tells whether the library has ibv_reg_dmabuf_mr.
func (l *Lib) HasDMABuf() bool { return l.t.reg_dmabuf_mr != nil }

// HasOptionalAccess tells whether the library masks access flags that the kernel
// does not know, such as relaxed ordering.
func (l *Lib) HasOptionalAccess() bool { return l.t.reg_mr_iova2 != nil }
