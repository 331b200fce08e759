package topo

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// Bounds of what is read, far above what a kernel shows.
const (
	maxFileBytes = 64 << 10
	maxEntries   = 1 << 16
	maxLinks     = 40
	maxProblems  = 1000
)

// Problem is something in the tree that could not be read or made no sense.
type Problem struct {
	Path string `json:"path"` // below the root
	Text string `json:"text"`
}

func (p Problem) String() string { return p.Path + ": " + p.Text }

// tree reads a sysfs. os.Root keeps links from leaving it.
type tree struct {
	root     *os.Root
	problems []Problem
	dropped  int
	seen     map[string]bool // paths that have a problem already
}

// problem notes what is wrong with a path, once.
func (t *tree) problem(p string, err error) {
	var at *fs.PathError
	if errors.As(err, &at) {
		err = at.Err
	}
	if t.seen[p] {
		return
	}
	if len(t.problems) >= maxProblems {
		t.dropped++
		return
	}
	t.seen[p] = true
	t.problems = append(t.problems, Problem{p, err.Error()})
}

func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// text reads one attribute, without the space around it. The error is about the
// file; what the text means is for the caller.
func (t *tree) text(p string) (string, error) {
	// O_NONBLOCK: opening a pipe must not wait for a writer.
	f, err := t.root.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("is no file but %s", info.Mode().Type())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return "", err
	}
	if len(b) > maxFileBytes {
		return "", fmt.Errorf("holds more than %d bytes", maxFileBytes)
	}
	return strings.TrimSpace(strings.ToValidUTF8(string(b), "?")), nil
}

// maxShort bounds what short reads.
const maxShort = 256

// short reads a short attribute that is an entry of an open folder, and no link.
// It takes three system calls where text takes a dozen: a port has up to 1024
// entries in its GID table.
func short(dir *os.File, name string) (string, error) {
	var text []byte
	var readErr error
	raw, err := dir.SyscallConn()
	if err != nil {
		return "", err
	}
	err = raw.Control(func(fd uintptr) {
		var file int
		file, readErr = syscall.Openat(int(fd), name, syscall.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
		if readErr != nil {
			return
		}
		defer func() { _ = syscall.Close(file) }()
		buf := make([]byte, maxShort)
		n, e := syscall.Read(file, buf)
		text, readErr = buf[:max(n, 0)], e
	})
	if err := errors.Join(err, readErr); err != nil {
		return "", err
	}
	return strings.TrimSpace(strings.ToValidUTF8(string(text), "?")), nil
}

// optional reads an attribute that not every kernel and device has: "" then.
// What else keeps it from being read is a problem.
func (t *tree) optional(p string) string {
	s, err := t.text(p)
	if err != nil && !missing(err) {
		t.problem(p, err)
	}
	return s
}

// want reads an attribute that has to be there.
func (t *tree) want(p string) string {
	s, err := t.text(p)
	if err != nil {
		t.problem(p, err)
	}
	return s
}

// names lists a folder in order of name; a missing one is empty.
func (t *tree) names(p string) []string {
	f, err := t.root.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if !missing(err) {
			t.problem(p, err)
		}
		return nil
	}
	defer f.Close()
	names, err := f.Readdirnames(maxEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		t.problem(p, err)
	}
	if len(names) == maxEntries {
		t.problem(p, fmt.Errorf("has %d entries or more: the rest is not looked at", maxEntries))
	}
	slices.Sort(names)
	return names
}

// resolve follows every link of p and returns the path, below the root, of what
// it names.
func (t *tree) resolve(p string) (string, error) {
	todo := strings.Split(path.Clean(p), "/")
	at, links := "", 0
	for len(todo) > 0 {
		part := todo[0]
		todo = todo[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if at == "" {
				return "", errors.New("a link leaves the root")
			}
			at = strings.TrimSuffix(path.Dir(at), ".")
			continue
		}
		next := path.Join(at, part)
		info, err := t.root.Lstat(next)
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("more than %d links in a row", maxLinks)
		}
		link, err := t.root.Readlink(next)
		if err != nil {
			return "", err
		}
		if path.IsAbs(link) {
			return "", fmt.Errorf("a link to %q leaves the root", link)
		}
		todo = append(strings.Split(link, "/"), todo...)
	}
	return at, nil
}
