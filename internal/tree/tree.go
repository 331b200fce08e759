// Package tree checks the shape of the source tree: who may import whom, where
// unsafe code may stand, that every package says what it is for, and that no
// tracked file names a machine-local path. Its test runs Check over this
// repository, so that a change which breaks the layering fails like any other.
//
//	cmd -> moe -> dispatch, combine -> peergroup -> transport/engine -> transport <- providers
//	        |          |
//	        |          +-> moe/routing, kernels, uvmwatch        internal/* below everything
//
// Nothing but that test calls it.
package tree

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Finding is one broken rule.
type Finding struct {
	File string // slash path below the root, or a package folder
	Line int    // 0 when it is about the whole file or folder
	Rule string // short name of the rule
	Text string // what is wrong, and what would be right
}

func (f Finding) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", f.File, f.Line, f.Rule, f.Text)
}

// Module is the path of the module whose layers the rules name.
const Module = "moerail"

// Check reads every Go file below root, a folder laid out as this repository,
// and returns the rules that are broken, in path order. The error is about
// reading or parsing.
func Check(root string) ([]Finding, error) {
	packages, err := load(root)
	if err != nil {
		return nil, err
	}
	var out []Finding
	for _, dir := range slices.Sorted(mapKeys(packages)) {
		files := packages[dir]
		layer := layerOf(dir)
		if layer == nil {
			out = append(out, Finding{dir, 0, "layer", "no rule for this folder; say in internal/tree/layers.go what it may import"})
			continue
		}
		documented, hasCode := false, false
		for _, f := range files {
			out = append(out, checkFences(f)...)
			if f.test {
				continue // a test may put any layer under load
			}
			hasCode = true
			documented = documented || f.ast.Doc != nil
			out = append(out, layer.check(dir, f)...)
		}
		if hasCode && !documented {
			out = append(out, Finding{dir, 0, "package-comment", "no file has a package comment"})
		}
	}
	return out, nil
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

type goFile struct {
	path string // slash path below the root
	test bool
	ast  *ast.File
	fset *token.FileSet
}

func (f *goFile) line(n ast.Node) int { return f.fset.Position(n.Pos()).Line }

// load parses the Go files of every folder that the go command would build:
// not testdata, not vendor, not those that start with a dot or underscore.
func load(root string) (map[string][]*goFile, error) {
	packages := map[string][]*goFile{}
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			hidden := strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")
			if p != root && (hidden || name == "testdata" || name == "vendor") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		parsed, err := parser.ParseFile(fset, p, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		dir := path.Dir(rel)
		packages[dir] = append(packages[dir], &goFile{rel, strings.HasSuffix(name, "_test.go"), parsed, fset})
		return nil
	})
	return packages, err
}

// imports calls fn with each import path of f.
func (f *goFile) imports(fn func(path string, spec *ast.ImportSpec)) {
	for _, spec := range f.ast.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			fn(p, spec)
		}
	}
}

// checkFences holds every file, tests too, to where unsafe code and C may stand.
func checkFences(f *goFile) (out []Finding) {
	base := strings.TrimSuffix(strings.TrimSuffix(path.Base(f.path), ".go"), "_test")
	f.imports(func(p string, spec *ast.ImportSpec) {
		switch {
		case p == "unsafe" && !strings.HasSuffix(base, "_unsafe") && !strings.HasSuffix(base, "_cgo"):
			out = append(out, Finding{f.path, f.line(spec), "unsafe", `import "unsafe" only in a file named *_unsafe.go`})
		case p == "C" && !slices.Contains(cgoFolders, path.Dir(f.path)):
			out = append(out, Finding{f.path, f.line(spec), "cgo", `import "C" only in the folders that internal/tree/layers.go lists`})
		}
	})
	return out
}

// CheckWords looks for the forbidden words in the files named, slash paths
// below root. Files that hold a zero byte are taken for data and skipped.
func CheckWords(root string, files []string) ([]Finding, error) {
	var out []Finding
	for _, name := range files {
		b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if os.IsNotExist(err) {
			continue // tracked, but deleted in the work tree
		}
		if err != nil {
			return nil, err
		}
		if strings.IndexByte(string(b), 0) >= 0 {
			continue
		}
		for i, line := range strings.Split(string(b), "\n") {
			for _, word := range forbidden {
				if strings.Contains(line, word) {
					out = append(out, Finding{name, i + 1, "word", fmt.Sprintf("names %q, which exists on one machine only", word)})
				}
			}
		}
	}
	return out, nil
}
