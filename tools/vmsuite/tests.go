package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// tests runs the provider's own tests.
func (s *suite) tests(ctx context.Context) (string, error) {
	limit := time.Minute
	if end, ok := ctx.Deadline(); ok {
		// Go's own limit comes first: it prints where every goroutine hangs.
		limit = max(time.Until(end)-5*time.Second, time.Second)
	}
	// A test that finds no device must fail here, not skip.
	e, err := s.run(ctx, []string{"MOE_REQUIRE=rdma"}, "verbs.test", "-test.v", "-test.timeout="+limit.String())
	log := filepath.Join(s.bin, "verbs.test.log")
	if werr := os.WriteFile(log, []byte(e.stdout+e.stderr), 0o666); werr != nil {
		log = werr.Error()
	}
	passed, failed, skipped := outcomes(e.stdout)
	saw := fmt.Sprintf("%d passed, %d skipped", len(passed), len(skipped))
	if len(skipped) > 0 {
		saw += " (" + strings.Join(skipped, ", ") + ")"
	}
	switch {
	case err != nil:
		return saw, err
	case e.code != 0:
		return saw, fmt.Errorf("exit code %d; failed: %s; log in %s; its end: %s", e.code, strings.Join(failed, ", "), log, lastLines(e.stdout+e.stderr, 30))
	case len(passed) == 0:
		return saw, fmt.Errorf("no test ran")
	}
	return saw, nil
}

// outcomes reads the names of top-level tests from the output of -test.v.
func outcomes(text string) (passed, failed, skipped []string) {
	for line := range strings.Lines(text) {
		for prefix, to := range map[string]*[]string{"--- PASS: ": &passed, "--- FAIL: ": &failed, "--- SKIP: ": &skipped} {
			if rest, ok := strings.CutPrefix(line, prefix); ok {
				name, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
				*to = append(*to, name)
			}
		}
	}
	return passed, failed, skipped
}
