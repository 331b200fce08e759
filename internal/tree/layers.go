package tree

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
)

// layer says what the packages of a folder may import. Folders are matched by
// the first entry of layers that fits; "x/..." fits x and everything below it.
type layer struct {
	folder string
	// may lists folders of this module, in the same notation. What a layer may
	// not import it must not reach in another way either, such as a callback
	// that exists only to get round the rule.
	may []string
	// outside lists modules that may be imported besides the standard library.
	outside []string
	// pure packages do arithmetic: no goroutines, channels, clocks or I/O.
	pure bool
}

const sys = "golang.org/x/sys"

// below is what every layer above the contract may use.
var below = []string{"internal/...", "transport", "transport/internal/..."}

func with(more ...string) []string { return append(slices.Clone(below), more...) }

// layers is the picture in ARCHITECTURE.md, bottom up.
var layers = []layer{
	{folder: "transport"},
	{folder: "transport/internal/...", may: below, outside: []string{sys}},
	{folder: "transport/transporttest/...", may: below, outside: []string{sys}},
	{folder: "transport/engine/...", may: with("uvmwatch", "transport/engine/..."), outside: []string{sys}},
	// Everything else below transport is a provider: it knows the contract, and
	// neither the engine nor another provider.
	{folder: "transport/loopback/...", may: with("transport/loopback/..."), outside: []string{sys}},
	{folder: "transport/shm/...", may: with("transport/shm/..."), outside: []string{sys}},
	{folder: "transport/counting/...", may: with("transport/counting/..."), outside: []string{sys}},
	{folder: "transport/efa/...", may: with("transport/efa/..."), outside: []string{sys}},
	{folder: "transport/verbs/...", may: with("transport/verbs/..."), outside: []string{sys}},
	{folder: "uvmwatch", may: below, outside: []string{sys}},

	{folder: "kernels/abi"},
	{folder: "kernels", may: []string{"kernels/abi", "internal/..."}},
	{folder: "kernels/host/...", may: []string{"kernels", "kernels/abi", "kernels/host/...", "internal/...", "moe/routing", "transport"}, outside: []string{sys}},

	{folder: "peergroup/...", may: with("peergroup/...", "transport/engine"), outside: []string{sys}},
	{folder: "moe/routing", may: []string{"kernels/abi"}, pure: true},
	{folder: "moe/placement", pure: true},
	{folder: "dispatch", may: with("peergroup", "transport/engine", "moe/routing", "kernels", "kernels/abi", "uvmwatch")},
	{folder: "combine", may: with("peergroup", "transport/engine", "moe/routing", "kernels", "kernels/abi", "uvmwatch")},
	{folder: "moe/internal/...", may: with("moe/internal/...", "moe/routing", "peergroup/...", "transport/engine", "kernels/...", "uvmwatch"), outside: []string{sys}},
	// moe wires everything below it; the loopback is its embedded default.
	{folder: "moe", may: with("moe/internal/...", "moe/routing", "dispatch", "combine", "peergroup/...", "transport/engine", "transport/loopback", "kernels/...", "uvmwatch"), outside: []string{sys}},

	// The oracle shares nothing with what it judges.
	{folder: "internal/reference/..."},
	{folder: "internal/casefile", may: []string{"internal/reference"}},
	{folder: "internal/workload", may: []string{"internal/reference"}},
	{folder: "internal/...", may: []string{"internal/...", "transport"}, outside: []string{sys}},

	{folder: "cmd/...", may: []string{"..."}, outside: []string{"..."}},
	{folder: "bench/...", may: []string{"..."}, outside: []string{"..."}},
	{folder: "tools/..."},
	{folder: "examples/...", may: []string{"moe", "peergroup", "transport", "transport/loopback", "transport/shm"}},
}

// above lists what no layer but themselves may import.
var above = []string{"cmd/...", "bench/...", "tools/...", "examples/..."}

// cgoFolders may import "C".
var cgoFolders = []string{"internal/fabric", "internal/ibv", "internal/ibv/ibvfake"}

// impure lists standard packages that a pure package may not import; their
// subpackages are included.
var impure = []string{"bufio", "context", "io", "log", "net", "os", "runtime", "sync", "syscall", "testing", "time", "unsafe"}

// forbidden lists beginnings of paths that exist on somebody's machine only and
// so stand in no tracked file. They are put together here so that this file does
// not hold them itself.
var forbidden = []string{"/ho" + "me/", "/Us" + "ers/", "/ro" + "ot/", "/wo" + "rk/", "../" + "shared"}

func layerOf(folder string) *layer {
	for i := range layers {
		if matches(layers[i].folder, folder) {
			return &layers[i]
		}
	}
	return nil
}

func matches(pattern, p string) bool {
	if pattern == "..." {
		return true
	}
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return p == base || strings.HasPrefix(p, base+"/")
	}
	return p == pattern
}

func matchesAny(patterns []string, p string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matches(pattern, p) })
}

// check holds one non-test file of folder dir to its layer.
func (l *layer) check(dir string, f *goFile) (out []Finding) {
	add := func(n ast.Node, rule, format string, args ...any) {
		out = append(out, Finding{f.path, f.line(n), rule, fmt.Sprintf(format, args...)})
	}
	f.imports(func(p string, spec *ast.ImportSpec) {
		first, _, _ := strings.Cut(p, "/")
		switch {
		case first == Module:
			inside := strings.TrimPrefix(p, Module+"/")
			if !matchesAny(l.may, inside) || (matchesAny(above, inside) && !matchesAny(above, dir)) {
				add(spec, "layer", "%s may not import %s", dir, p)
			}
		case strings.Contains(first, "."):
			if !slices.ContainsFunc(l.outside, func(m string) bool { return matches(m+"/...", p) || m == "..." }) {
				add(spec, "dependency", "%s may not import %s", dir, p)
			}
		case l.pure && slices.ContainsFunc(impure, func(std string) bool { return matches(std+"/...", p) }):
			add(spec, "pure", "%s is pure arithmetic and may not import %s", dir, p)
		}
	})
	if !l.pure {
		return out
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.GoStmt, *ast.SelectStmt, *ast.SendStmt, *ast.ChanType:
			add(n, "pure", "%s is pure arithmetic: no goroutines and no channels", dir)
		}
		return true
	})
	return out
}
