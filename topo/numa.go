package topo

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Node is a NUMA node.
type Node struct {
	Number int   `json:"number"`
	CPUs   []int `json:"cpus"` // online hardware threads, ascending
	// Cores are the first hardware threads of the node's cores, ascending: where
	// threads go that should not share a core.
	Cores []int `json:"cores"`
}

func nodeName(n int) string { return fmt.Sprintf("node %d", n) }

// nodes reads the NUMA nodes. A kernel that shows none has one, with all CPUs.
func (t *tree) nodes() []Node {
	online := t.cpus("devices/system/cpu/online", cpuList)
	const dir = "devices/system/node"
	out := []Node{}
	for _, name := range t.names(dir) {
		text, ok := strings.CutPrefix(name, "node")
		if !ok || text == "" {
			continue // online, possible and the like
		}
		n, err := number(text, 0, maxNode)
		if err != nil {
			t.problem(dir+"/"+name, fmt.Errorf("is no number of a node: %w", err))
			continue
		}
		p := dir + "/" + name
		cpus := t.cpus(p+"/cpulist", cpuList)
		if cpus == nil {
			cpus = t.cpus(p+"/cpumap", cpuMap)
		}
		if cpus == nil {
			t.problem(p, fmt.Errorf("neither cpulist nor cpumap says which CPUs it has"))
		}
		if online != nil {
			cpus = slices.DeleteFunc(cpus, func(c int) bool { _, is := slices.BinarySearch(online, c); return !is })
		}
		out = append(out, Node{Number: n, CPUs: cpus})
	}
	if len(out) == 0 {
		out = append(out, Node{Number: 0, CPUs: online})
	}
	for i := range out {
		if out[i].CPUs == nil {
			out[i].CPUs = []int{}
		}
		out[i].Cores = t.cores(out[i].CPUs)
	}
	slices.SortFunc(out, func(a, b Node) int { return cmp.Compare(a.Number, b.Number) })
	return out
}

// cpus reads a set of CPUs; nil where there is none to be read.
func (t *tree) cpus(p string, parse func(string) ([]int, error)) []int {
	text, err := t.text(p)
	if missing(err) {
		return nil
	}
	var cpus []int
	if err == nil {
		cpus, err = parse(text)
	}
	if err != nil {
		t.problem(p, err)
	}
	return cpus
}

// cores picks the first thread of each core. A CPU whose siblings the kernel does
// not show is a core.
func (t *tree) cores(cpus []int) []int {
	out := []int{}
	taken := map[int]bool{}
	for _, c := range cpus {
		if taken[c] {
			continue
		}
		out = append(out, c)
		p := fmt.Sprintf("devices/system/cpu/cpu%d/topology/", c)
		siblings := t.cpus(p+"thread_siblings_list", cpuList)
		if siblings == nil {
			siblings = t.cpus(p+"thread_siblings", cpuMap)
		}
		for _, s := range siblings {
			taken[s] = true
		}
	}
	return out
}
