//go:build race

package shm

// The race detector does not see atomics off the heap. Under it, what they
// order is told once more through a word on the heap (domain.ordered).
const raceEnabled = true
