package engine

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// maxCPU is the size of the kernel's affinity set that x/sys carries.
const maxCPU = 1024

// pinThread binds the calling OS thread to one CPU.
func pinThread(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("engine: pin worker to CPU %d: %w", cpu, err)
	}
	return nil
}
