package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"moerail/cmd/moerail/internal/machine"
	"moerail/topo"
)

// newTopo is `moerail topo`.
func newTopo() *cobra.Command {
	var (
		asJSON  bool
		root    string
		options topo.Options
		gpus    []string
	)
	cmd := &cobra.Command{
		Use:   "topo",
		Short: "Show GPUs, NICs, NUMA nodes, and which NIC serves which GPU",
		Args:  cobra.NoArgs,
		Long: `Reads from sysfs where GPUs, RDMA devices with their ports and GIDs, network
interfaces and cores are, and shows which ports serve each GPU and by what path:
through a common PCI bridge, the host bridge, or the NUMA node. A GPU without a
port, and a port without a GPU, come with the reason.

Of several kinds of ports the one with the highest rate in all is used, unless
--ports names some. Ports that are not active serve nobody.`,
		Example: "  moerail topo\n  moerail topo --json\n  moerail topo --ports mlx5_0,mlx5_1:1 --gpus 0000:0f:00.0",
	}
	f := cmd.Flags()
	f.BoolVar(&asJSON, "json", false, "print one JSON document")
	f.StringVar(&root, "sysfs", "/sys", "where sysfs is; a copy of another machine's will do")
	f.StringSliceVar(&options.Ports, "ports", nil, "RDMA devices, or ports of them, to use (default: those of the best kind)")
	f.StringSliceVar(&gpus, "gpus", nil, "PCI addresses of the GPUs to serve (default: all)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, g := range gpus {
			a, err := topo.ParsePCIAddress(g)
			if err != nil {
				return usageError{fmt.Errorf("%s: --gpus: %w", cmd.CommandPath(), err)}
			}
			options.GPUs = append(options.GPUs, a)
		}
		s, err := topo.Read(root)
		if err != nil {
			return usageError{fmt.Errorf("%s: --sysfs: %w", cmd.CommandPath(), err)}
		}
		a, err := s.Assign(options)
		if err != nil {
			return usageError{fmt.Errorf("%s: %w", cmd.CommandPath(), err)}
		}
		d := topology{Format: "moerail-topo/1", Version: version(), System: s, Map: a, LockedMemory: machine.LockedMemory()}
		if !asJSON {
			d.print(cmd.OutOrStdout())
			return nil
		}
		out, err := json.Marshal(d)
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s\n", out)
		return nil
	}
	return cmd
}

// topology is the JSON document of topo.
type topology struct {
	Format       string           `json:"format"`
	Version      string           `json:"version"`
	System       *topo.System     `json:"system"`
	Map          *topo.Assignment `json:"map"`
	LockedMemory machine.Finding  `json:"locked_memory"`
}

func (d *topology) print(w io.Writer) {
	d.printGPUs(w)
	d.printPorts(w)
	d.printGIDs(w)
	d.printInterfaces(w)
	d.printNodes(w)
	m := d.LockedMemory
	fmt.Fprintf(w, "locked memory: %s (%s)", m.Found, m.State)
	if m.Remedy != "" {
		fmt.Fprintf(w, "; %s", m.Remedy)
	}
	fmt.Fprintln(w)
	for _, n := range d.Map.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	for _, p := range d.System.Problems {
		fmt.Fprintf(w, "problem: %s/%s\n", strings.TrimSuffix(d.System.Root, "/"), p)
	}
}

// newTable is a table that renders to w.
func newTable(w io.Writer, title string, head ...any) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault // Gb/s is not GB/S
	t.SetTitle(title)
	t.AppendHeader(head)
	t.SetColumnConfigs([]table.ColumnConfig{{Number: len(head), WidthMax: 60, WidthMaxEnforcer: text.WrapSoft}})
	return t
}

func (d *topology) printGPUs(w io.Writer) {
	if len(d.System.GPUs) == 0 {
		fmt.Fprint(w, "no GPU: no display or 3D controller of vendor 10de on the PCI bus; the host device needs none\n\n")
		return
	}
	t := newTable(w, "GPUs", "GPU", "node", "ports", "path", "cores", "note")
	for _, s := range d.Map.Services {
		var ports, paths []string
		for _, r := range s.Routes {
			ports = append(ports, fmt.Sprintf("%s:%d", r.Device, r.Port))
			paths = append(paths, pathOf(r))
		}
		t.AppendRow(table.Row{s.GPU, nodeText(d.nodeOf(s.GPU)), orNone(strings.Join(ports, "\n")), strings.Join(paths, "\n"), rangesText(s.Cores), s.Reason})
	}
	t.Render()
	fmt.Fprintln(w)
}

func pathOf(r topo.Route) string {
	switch r.Distance {
	case topo.SameBridge:
		return "bridge " + r.Via
	case topo.SameHostBridge:
		return "host bridge " + r.Via
	case topo.SameNode:
		return "NUMA " + r.Via
	}
	return "between NUMA nodes"
}

func (d *topology) nodeOf(gpu topo.PCIAddress) int {
	for _, g := range d.System.GPUs {
		if g.PCI == gpu {
			return g.NUMA
		}
	}
	return topo.UnknownNode
}

func (d *topology) printPorts(w io.Writer) {
	if len(d.System.Devices) == 0 {
		fmt.Fprint(w, "no RDMA device: /sys/class/infiniband shows none; load the NIC's driver (mlx5_ib, efa; rdma_rxe for software RDMA) on the host,\n"+
			"and in a container share its network and pass /dev/infiniband\n\n")
		return
	}
	serves := map[string]string{}
	for _, s := range d.Map.Services {
		for _, r := range s.Routes {
			k := fmt.Sprintf("%s:%d", r.Device, r.Port)
			serves[k] = strings.TrimPrefix(serves[k]+"\n"+string(s.GPU), "\n")
		}
	}
	for _, s := range d.Map.Spares {
		serves[fmt.Sprintf("%s:%d", s.Device, s.Port)] = "none: " + s.Reason
	}
	t := newTable(w, "RDMA ports", "port", "PCI", "node", "interface", "link", "state", "Gb/s", "LID", "firmware", "/dev/infiniband", "serves")
	for _, v := range d.System.Devices {
		if len(v.Ports) == 0 {
			t.AppendRow(table.Row{v.Name, orNone(string(v.PCI)), nodeText(v.NUMA), orNone(strings.Join(v.Interfaces, " ")), "", "", "", "", v.Firmware, orNone(v.CharDevice), "none: it shows no port"})
		}
		for _, p := range v.Ports {
			name := fmt.Sprintf("%s:%d", v.Name, p.Number)
			t.AppendRow(table.Row{name, orNone(string(v.PCI)), nodeText(v.NUMA), orNone(strings.Join(v.Interfaces, " ")), orNone(p.LinkLayer), orNone(p.State), gbits(p.Rate),
				lidText(p.LID), v.Firmware, orNone(v.CharDevice), serves[name]})
		}
	}
	t.Render()
	fmt.Fprintln(w)
}

func (d *topology) printGIDs(w io.Writer) {
	t := newTable(w, "GIDs in use", "port", "index", "type", "address", "interface")
	n := 0
	for _, v := range d.System.Devices {
		for _, p := range v.Ports {
			for _, g := range p.GIDs {
				t.AppendRow(table.Row{fmt.Sprintf("%s:%d", v.Name, p.Number), g.Index, orNone(g.Type), g.Address, orNone(g.Interface)})
				n++
			}
		}
	}
	if n > 0 {
		t.Render()
		fmt.Fprintln(w)
	}
}

func (d *topology) printInterfaces(w io.Writer) {
	t := newTable(w, "network interfaces", "interface", "PCI", "node", "state", "MTU", "Gb/s", "RDMA")
	for _, n := range d.System.Interfaces {
		t.AppendRow(table.Row{n.Name, orNone(string(n.PCI)), nodeText(n.NUMA), orNone(n.State), n.MTU, gbits(n.Rate), orNone(strings.Join(n.RDMA, " "))})
	}
	if len(d.System.Interfaces) > 0 {
		t.Render()
		fmt.Fprintln(w)
	}
}

func (d *topology) printNodes(w io.Writer) {
	t := newTable(w, "NUMA nodes", "node", "CPUs", "cores", "first threads of the cores")
	for _, n := range d.System.Nodes {
		t.AppendRow(table.Row{n.Number, rangesText(n.CPUs), len(n.Cores), rangesText(n.Cores)})
	}
	t.Render()
	fmt.Fprintln(w)
}

func orNone(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func nodeText(n int) string {
	if n == topo.UnknownNode {
		return "-"
	}
	return fmt.Sprint(n)
}

func lidText(lid int) string {
	if lid == 0 {
		return "-"
	}
	return fmt.Sprint(lid)
}

// gbits is a rate in bytes a second as network people write it.
func gbits(rate float64) string {
	if rate == 0 {
		return "-"
	}
	return fmt.Sprintf("%g", rate*8/1e9)
}

// rangesText is "0-3,8" of an ascending list.
func rangesText(list []int) string {
	var b strings.Builder
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, list[i])
		if j > i {
			fmt.Fprintf(&b, "-%d", list[j])
		}
		i = j + 1
	}
	return orNone(b.String())
}
