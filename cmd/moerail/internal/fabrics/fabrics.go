package fabrics

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"moerail/transport/efa"
	"moerail/transport/verbs"
)

// Words are what a fabric can be called.
const Words = "auto, loopback, shm, verbs, efa or libfabric:PROVIDER"

// Error is a fabric that cannot be had here, and why; the reason brings the
// remedy where there is one.
type Error struct {
	Fabric string
	Reason string
	Err    error // the cause, if a library said it
}

func (e *Error) Error() string { return e.Fabric + ": " + e.Reason }
func (e *Error) Unwrap() error { return e.Err }

const libfabricPrefix = "libfabric:"

// OneHost says whether a fabric ends at the host, so that a job over several
// cannot use it.
func OneHost(fabric string) bool {
	return fabric == "loopback" || fabric == "shm" || fabric == libfabricPrefix+"shm"
}

// Resolve checks a fabric's name and replaces auto by the best that this machine
// has: an EFA device, an RDMA device that is no software and has an active port,
// else loopback where all ranks are in one process, and shm where they are not.
// It fails with *Error for what this build has not and for unknown words.
func Resolve(name string, oneProcess bool) (string, error) {
	if name == "auto" {
		if !anyRDMA() { // the libraries need not even be loaded
			return best(oneProcess, func() bool { return false }, func() verbs.Discovery { return verbs.Discovery{} }), nil
		}
		return best(oneProcess, efaHere, verbs.Discover), nil
	}
	provider, isLibfabric := strings.CutPrefix(name, libfabricPrefix)
	switch {
	case name == "loopback" && !oneProcess:
		return "", &Error{name, "joins ranks of one process; between processes use shm", nil}
	case name == "loopback", name == "shm":
	case isLibfabric && provider == "":
		return "", &Error{name, "names no provider, want libfabric:PROVIDER such as libfabric:tcp", nil}
	case (isLibfabric || name == "efa") && !efa.Built:
		return "", &Error{name, efa.ErrNotBuilt.Error(), efa.ErrNotBuilt}
	case name == "verbs" && !verbs.Built:
		return "", &Error{name, verbs.ErrNotBuilt.Error(), verbs.ErrNotBuilt}
	case isLibfabric, name == "efa", name == "verbs":
	default:
		return "", &Error{fmt.Sprintf("%q", name), "is no fabric, want " + Words, nil}
	}
	return name, nil
}

// best is what auto stands for, given what is found. Software devices are never
// chosen: they are for tests, and slower than shm. EFA devices are libibverbs' too,
// but have no reliable connections.
func best(oneProcess bool, hasEFA func() bool, findVerbs func() verbs.Discovery) string {
	if efa.Built && hasEFA() {
		return "efa"
	}
	if verbs.Built {
		for _, d := range findVerbs().Devices {
			if d.Err == nil && !d.Software && d.Vendor != amazon && activePort(d) {
				return "verbs"
			}
		}
	}
	if oneProcess {
		return "loopback"
	}
	return "shm"
}

// amazon is the PCI vendor of EFA devices.
const amazon = 0x1d0f

// rdmaClass is where the kernel lists RDMA devices; those of EFA are among them.
const rdmaClass = "/sys/class/infiniband"

func anyRDMA() bool {
	devices, err := os.ReadDir(rdmaClass)
	return err == nil && len(devices) > 0
}

func efaHere() bool {
	p, err := efa.New(efa.Config{Provider: "efa"})
	return err == nil && len(p.NICs()) > 0
}

func activePort(d verbs.Device) bool {
	for _, p := range d.Ports {
		if p.Active {
			return true
		}
	}
	return false
}

// refused wraps what a library said when it was asked for a fabric.
func refused(fabric string, err error) error {
	if err == nil {
		return nil
	}
	reason := strings.ReplaceAll(err.Error(), "\n", "; ")
	if errors.Is(err, efa.ErrNoProvider) || errors.Is(err, verbs.ErrNoDevice) {
		reason += `; "moerail doctor" says what there is and what it takes`
	}
	return &Error{fabric, reason, err}
}
