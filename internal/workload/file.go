package workload

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Largest files that are read.
const (
	maxRecordedBytes  = 256 << 20
	maxManifestBytes  = 1 << 20
	maxLinesBytes     = 16 << 20
	maxPlacementBytes = 4 << 20
)

// splitLayer takes a trailing :NUMBER off a file name; layer is -1 without one.
func splitLayer(spec string) (path string, layer int) {
	at := strings.LastIndexByte(spec, ':')
	if at < 0 {
		return spec, -1
	}
	n, err := strconv.ParseUint(spec[at+1:], 10, 31)
	if err != nil {
		return spec, -1
	}
	return spec[:at], int(n)
}

func openFile(spec string, shape Shape) (Source, error) {
	path, layer := splitLayer(spec)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && !strings.ContainsAny(path, "./") {
		return nil, fmt.Errorf("workload: %q is neither uniform, zipf:S, one:EXPERT nor a file", clip(path))
	}
	if strings.HasSuffix(path, ".u8") {
		return openRecorded(path, layer, shape)
	}
	if layer >= 0 {
		return nil, fmt.Errorf("workload: %s: only a .u8 file has layers", clip(spec))
	}
	return openLines(path, shape)
}

// readFile reads a whole regular file of at most limit bytes.
func readFile(path string, limit int64) ([]byte, error) {
	// Without O_NONBLOCK opening a named pipe waits for somebody to write to it.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("workload: %s is not a regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("workload: %w", err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("workload: %s has more than %d bytes", path, limit)
	}
	return data, nil
}
