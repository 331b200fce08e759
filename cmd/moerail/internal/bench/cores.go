package bench

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"moerail/bench/micro"
)

// ParseCPUs reads the cores of each rank as 0,1 or, where a rank has several,
// 0+2,1+3: the last one is that of the thread that polls, the others are its
// application's. "none" binds nothing.
func ParseCPUs(text string) ([][]int, error) {
	if text == "none" {
		return nil, nil
	}
	bad := func(format string, args ...any) error {
		return &micro.ConfigError{Field: "cpus", Reason: fmt.Sprintf(format, args...)}
	}
	parts := strings.Split(text, ",")
	if len(parts) != ranks {
		return nil, bad("is %q, want the cores of %d ranks, as 0,1 or 0+2,1+3, or none, or auto", text, ranks)
	}
	var all [][]int
	for p, part := range parts {
		var mine []int
		for s := range strings.SplitSeq(part, "+") {
			n, err := strconv.Atoi(s)
			if err != nil || n < 0 || n >= maxCPU {
				return nil, bad("of rank %d is %q, want numbers from 0 to %d", p, part, maxCPU-1)
			}
			mine = append(mine, n)
		}
		all = append(all, mine)
	}
	return all, nil
}

// maxCPU is the size of the kernel's affinity set that x/sys carries.
const maxCPU = 1024

// resolveCPUs replaces auto by a core for each rank, the first ones that this
// process may use, or by none where there are fewer than ranks.
func (o *Options) resolveCPUs() (err error) {
	if o.CPUs == "auto" {
		o.CPUs = "none"
		var set unix.CPUSet
		if unix.SchedGetaffinity(0, &set) == nil && set.Count() >= ranks {
			var first []string
			for c := 0; len(first) < ranks; c++ {
				if set.IsSet(c) {
					first = append(first, strconv.Itoa(c))
				}
			}
			o.CPUs = strings.Join(first, ",")
		}
	}
	o.cpus, err = ParseCPUs(o.CPUs)
	return err
}

func (o *Options) cpusOf(rank int) []int {
	if o.cpus == nil {
		return nil
	}
	return o.cpus[rank]
}

// pollCPU is the core of the thread that polls, -1 where it is none of its own: an
// engine that shares one core with its application is an ordinary goroutine.
func (o *Options) pollCPU(rank int) int {
	mine := o.cpusOf(rank)
	if len(mine) == 0 || len(mine) == 1 && o.Level == micro.LevelEngine {
		return -1
	}
	return mine[len(mine)-1]
}

// bindProcess keeps every thread of this process, now and later, on cores; an empty
// list does nothing. It comes before anything else has threads of its own.
func bindProcess(cores []int) error {
	if len(cores) == 0 {
		return nil
	}
	var set unix.CPUSet
	for _, c := range cores {
		set.Set(c)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("threads of this process: %w", err)
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		if err := unix.SchedSetaffinity(id, &set); err != nil && !errors.Is(err, unix.ESRCH) {
			return &micro.ConfigError{Field: "cpus", Reason: fmt.Sprintf("%v cannot be had: %v", cores, err)}
		}
	}
	return nil
}
