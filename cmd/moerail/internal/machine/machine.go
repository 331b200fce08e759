// Package machine says what this machine is, from what the kernel shows.
package machine

import (
	"bufio"
	"os"
	"runtime"
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

func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		key, value, ok := strings.Cut(s.Text(), ":")
		if ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
