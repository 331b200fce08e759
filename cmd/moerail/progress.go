package main

import (
	"os"
	"runtime"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress draws a bar on standard error once a run has taken a second, if
// somebody is watching. The nil progress draws nothing.
type progress struct {
	bar   *progressbar.ProgressBar
	begin time.Time
	last  time.Time
}

const (
	progressAfter = time.Second
	progressEvery = 200 * time.Millisecond
)

// newProgress returns nil where no bar belongs.
func newProgress(asJSON bool) *progress {
	if asJSON || !term.IsTerminal(int(os.Stderr.Fd())) {
		return nil
	}
	return &progress{begin: time.Now()}
}

// callback is called by one goroutine while all ranks are between rounds. It
// returns how many allocations drawing took, so that they are not blamed on the
// rounds.
func (p *progress) callback() func(done, of int) uint64 {
	if p == nil {
		return nil
	}
	return func(done, of int) uint64 {
		now := time.Now()
		if now.Sub(p.begin) < progressAfter || now.Sub(p.last) < progressEvery {
			return 0
		}
		p.last = now
		before := mallocs()
		if p.bar == nil {
			p.bar = progressbar.NewOptions(of, progressbar.OptionSetWriter(os.Stderr),
				progressbar.OptionSetDescription("rounds"), progressbar.OptionClearOnFinish(), progressbar.OptionShowCount())
		}
		_ = p.bar.Set(done) // a terminal that went away must not end a run
		return mallocs() - before
	}
}

func (p *progress) finish() {
	if p != nil && p.bar != nil {
		_ = p.bar.Clear()
	}
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}
