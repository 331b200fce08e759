package casefile

import (
	"fmt"
	"strings"
)

// Fault is one thing wrong with a file, and where: a path such as
// rounds[0].ranks[2].ids[1][0].
type Fault struct{ Path, Reason string }

// FileError lists what is wrong with a file; at most 50 faults are kept.
type FileError struct {
	What   string // the kind of file
	Faults []Fault
	More   int // faults that are not in the list
}

// Error puts all faults on one line.
func (e *FileError) Error() string {
	var b strings.Builder
	b.WriteString(e.What + ": ")
	for i, f := range e.Faults {
		if i > 0 {
			b.WriteString("; ")
		}
		if f.Path != "" {
			b.WriteString(f.Path + ": ")
		}
		b.WriteString(f.Reason)
	}
	if e.More > 0 {
		fmt.Fprintf(&b, "; and %d more", e.More)
	}
	return b.String()
}
