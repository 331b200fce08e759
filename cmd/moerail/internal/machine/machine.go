// Package machine says what this machine is, from what the kernel shows.
package machine

import (
	"bufio"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Info stands in every report, so that a figure can be told from another's.
type Info struct {
	CPU    string   `json:"cpu"`
	Cores  int      `json:"cores"` // that this process may use
	Kernel string   `json:"kernel"`
	Go     string   `json:"go"`
	GPU    []string `json:"gpu"`
	NICs   []string `json:"nics"`
}

// Describe reads the machine. What cannot be read is "unknown".
func Describe() Info {
	return Info{CPU: cpuModel(), Cores: runtime.NumCPU(), Kernel: kernel(), Go: runtime.Version(),
		GPU: []string{}, NICs: []string{}}
}

// AvailableBytes is the memory that this process can have without swapping and
// within its limit of address space; a very large number where the kernel does
// not say.
func AvailableBytes() uint64 {
	free := uint64(1 << 62)
	if kib, err := strconv.ParseUint(strings.TrimSuffix(field("/proc/meminfo", "MemAvailable"), " kB"), 10, 50); err == nil {
		free = kib << 10
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_AS, &limit) != nil || limit.Cur >= free {
		return free
	}
	kib, err := strconv.ParseUint(strings.TrimSuffix(field("/proc/self/status", "VmSize"), " kB"), 10, 50)
	if err != nil {
		return limit.Cur
	}
	return limit.Cur - min(limit.Cur, kib<<10)
}

func cpuModel() string {
	if model := field("/proc/cpuinfo", "model name"); model != "" {
		return model
	}
	return "unknown"
}

// field returns the first value of key in a file of "key : value" lines.
func field(file, key string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		k, value, ok := strings.Cut(s.Text(), ":")
		if ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
