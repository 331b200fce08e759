package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// figures has bench/peers/comparewrite measure writes between the first devices of
// two nodes: moerail, the raw library and perftest in turn. Under emulation only
// ratios say something, so there is no bar here; the record has them.
func (s *suite) figures(ctx context.Context) (string, error) {
	if len(s.devices) < 2 {
		return "", errors.New("needs two devices")
	}
	a, b := s.pair()
	pair := a.name + "," + b.name
	file := filepath.Join(s.bin, "comparewrite.json")
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	e, err := s.run(ctx, []string{"MOERAIL_NICS=" + pair}, "comparewrite", "-fabric", "verbs", "-perftest", "-provider", pair,
		"-moerail", filepath.Join(s.bin, "moerail"), "-raw", filepath.Join(s.bin, "raw_write_verbs"),
		"-sizes", "2,4096,65536", "-turns", "3", "-samples", "200", "-burst", "200", "-burst-bytes", "4194304", "-bursts", "3",
		"-limit", s.patient(20*time.Second).String(), "-out", file)
	if err != nil {
		return "", err
	}
	if e.code != 0 {
		return "", fmt.Errorf("comparewrite: exit code %d: %s", e.code, lastLines(e.stderr, 5))
	}
	record, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	var doc struct {
		Format string
		Sizes  []json.RawMessage
	}
	if err := json.Unmarshal(record, &doc); err != nil || doc.Format != "moerail-compare-write/1" || len(doc.Sizes) == 0 {
		return "", fmt.Errorf("comparewrite: its record has format %q and %d sizes, %w", doc.Format, len(doc.Sizes), err)
	}
	s.comparison, s.table = record, e.stdout
	return fmt.Sprintf("%d sizes, medians of 3 turns, between %s and %s", len(doc.Sizes), a.name, b.name), nil
}

// pair is the first device and the first one of another node.
func (s *suite) pair() (a, b device) {
	a, b = s.devices[0], s.devices[1]
	if i := slices.IndexFunc(s.devices, func(d device) bool { return d.node != a.node }); i > 0 {
		b = s.devices[i]
	}
	return a, b
}
