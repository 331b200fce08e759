package machine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"moerail/internal/mem"
	"moerail/kernels/host"
	"moerail/moe/routing"
	"moerail/transport"
	"moerail/transport/loopback"
	"moerail/transport/shm"
)

// State of a finding.
const (
	OK     = "ok"
	Absent = "absent" // not in this build or machine; what needs it says so
	Poor   = "poor"   // works, and something could be better
	Broken = "broken" // in this build, and does not work here
)

// Finding is one thing that was looked at.
type Finding struct {
	Name   string `json:"name"`
	State  string `json:"state"`
	Found  string `json:"found"`
	Remedy string `json:"remedy"` // "" where nothing is to be done
}

// Limit is the range of one parameter.
type Limit struct {
	Name  string `json:"name"`
	Least int    `json:"least"`
	Most  int    `json:"most"`
}

// Limits in force. Memory usually ends first.
func Limits() []Limit {
	return []Limit{
		{"ranks", 1, routing.MaxRanks}, {"experts", 1, routing.MaxExperts}, {"top-k", 1, routing.MaxTopK},
		{"hidden", 1, routing.MaxHidden}, {"tokens of a rank", 0, routing.MaxTokens},
		{"expert alignment", 1, routing.MaxAlignment}, {"slots", 1, routing.MaxSlots},
		{"NICs of a rank", 1, routing.MaxNICs}, {"side bytes of a row", 0, routing.MaxSideBytes},
	}
}

// Report is everything that doctor looked at.
type Report struct {
	Findings  []Finding // in the order of the list that people see
	Libfabric Libfabric
	Verbs     Verbs
}

// Examine looks at everything.
func Examine() Report {
	r := Report{Libfabric: ExamineLibfabric(), Verbs: ExamineVerbs()}
	add := func(f ...Finding) { r.Findings = append(r.Findings, f...) }
	kernel := rdmaDevices("/")
	add(loopbackFabric(), shmFabric(), memfd())
	add(r.Verbs.findings(kernel)...)
	add(r.Libfabric.findings()...)
	add(hostDevice(), cuda(), cores())
	if limit, err := lockedLimit(); err != nil {
		add(Finding{"locked memory", Poor, err.Error(), "allow getrlimit in the container's seccomp profile"})
	} else {
		add(lockedMemory(limit, kernel.State != Absent))
	}
	add(hugePages(), openFiles())
	return r
}

func broken(name string, err error, remedy string) Finding {
	return Finding{name, Broken, err.Error(), remedy}
}

// opens tries one NIC of a provider for real.
func opens(p transport.Provider) error {
	nics := p.NICs()
	if len(nics) == 0 {
		return errors.New("no NIC")
	}
	d, err := p.Open(nics[0].Name, transport.DomainConfig{})
	if err != nil {
		return err
	}
	m, err := p.Alloc(1 << 16)
	if err != nil {
		return errors.Join(err, d.Close())
	}
	_, err = d.Register(m, transport.AccessAll)
	return errors.Join(err, d.Close(), p.Free(m))
}

func loopbackFabric() Finding {
	f, err := loopback.New(loopback.Config{})
	if err == nil {
		err = opens(f)
	}
	if err != nil {
		return broken("fabric loopback", err, "free memory, or raise the limit on address space (ulimit -v)")
	}
	return Finding{"fabric loopback", OK, "ranks of one process; opened, allocated and registered", ""}
}

func shmFabric() Finding {
	p, err := shm.New(shm.Config{})
	if err == nil {
		err = opens(p)
	}
	if err != nil {
		return broken("fabric shm", err, "allow memfd_create and abstract unix sockets in the container's seccomp profile; raise ulimit -n")
	}
	return Finding{"fabric shm", OK, "processes of one host; opened, allocated and registered", ""}
}

func memfd() Finding {
	m, err := mem.AllocShared("moerail-doctor", 1<<16)
	if err != nil {
		return broken("memfd", err, "allow memfd_create and mmap in the container's seccomp profile")
	}
	m.Host[0] = 1
	if err := mem.Free(m); err != nil {
		return broken("memfd", err, "report this")
	}
	return Finding{"memfd", OK, "shared memory can be made and mapped", ""}
}

func cuda() Finding {
	return Finding{"device cuda", Absent, "not in this build", "none yet: a build with the CUDA driver is to come"}
}

func hostDevice() Finding {
	d, err := host.NewDevice(host.Config{})
	if err != nil {
		return broken("device host", err, "report this")
	}
	return Finding{"device host", OK, "the device stages on the CPU: " + d.Name(), ""}
}

func cores() Finding {
	n, procs := runtime.NumCPU(), runtime.GOMAXPROCS(0)
	f := Finding{"cores", OK, fmt.Sprintf("%d usable, GOMAXPROCS %d", n, procs), ""}
	switch {
	case procs < n:
		f.State, f.Remedy = Poor, "unset GOMAXPROCS, or raise the container's CPU quota"
	case n < 4:
		f.State, f.Remedy = Poor, "more cores: with fewer cores than ranks and proxies, times are those of the scheduler"
	}
	return f
}

func bytesText(n uint64) string {
	if n == unix.RLIM_INFINITY {
		return "unlimited"
	}
	return fmt.Sprintf("%d KiB", n>>10)
}

// wantLocked is what registering the buffers of a modest run pins.
const wantLocked = 1 << 30

func hugePages() Finding {
	const file = "/sys/kernel/mm/transparent_hugepage/enabled"
	b, err := os.ReadFile(file)
	if err != nil {
		return Finding{"huge pages", Poor, "transparent huge pages are not in this kernel", ""}
	}
	f := Finding{"huge pages", OK, "transparent: " + strings.TrimSpace(string(b)), ""}
	if strings.Contains(f.Found, "[never]") {
		f.State, f.Remedy = Poor, "echo madvise > "+file
	}
	return f
}

// wantFiles is several descriptors for each of a hundred ranks in one process.
const wantFiles = 1024

func openFiles() Finding {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return Finding{"open files", Poor, err.Error(), ""}
	}
	f := Finding{"open files", OK, fmt.Sprintf("limit %d", l.Cur), ""}
	if l.Cur < wantFiles {
		f.State, f.Remedy = Poor, fmt.Sprintf("ulimit -n %d", wantFiles)
	}
	return f
}
