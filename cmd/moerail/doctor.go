package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"moerail/cmd/moerail/internal/machine"
)

// newDoctor is `moerail doctor`.
func newDoctor() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine and this build can do, and how to mend what they cannot",
		Args:  cobra.NoArgs,
		Long: `Lists the fabrics and devices of this build, what the machine gives them, and
the limits in force; each problem with its remedy. Of libfabric and libibverbs
it says which library was found, and of each provider or device what it can do;
the JSON document has all of it.

The exit code is 1 if something is broken that this build needs.`,
		Example: "  moerail doctor\n  moerail doctor --json",
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		found := machine.Examine()
		d := diagnosis{Format: "moerail-doctor/1", Version: version(), Machine: machine.Describe(),
			Findings: found.Findings, Libfabric: found.Libfabric, Verbs: found.Verbs, Limits: machine.Limits()}
		if asJSON {
			out, err := json.Marshal(d)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s\n", out)
		} else {
			d.print(cmd.OutOrStdout())
		}
		for _, f := range d.Findings {
			if f.State == machine.Broken {
				return &wrongError{fmt.Sprintf("%s: %s; remedy: %s", f.Name, f.Found, f.Remedy)}
			}
		}
		return nil
	}
	return cmd
}

// diagnosis is the JSON document of doctor.
type diagnosis struct {
	Format    string            `json:"format"`
	Version   string            `json:"version"`
	Machine   machine.Info      `json:"machine"`
	Findings  []machine.Finding `json:"findings"`
	Libfabric machine.Libfabric `json:"libfabric"`
	Verbs     machine.Verbs     `json:"verbs"`
	Limits    []machine.Limit   `json:"limits"`
}

func (d *diagnosis) print(w io.Writer) {
	fmt.Fprintf(w, "moerail %s on %s, %d cores, Linux %s, %s\n\n", d.Version, d.Machine.CPU, d.Machine.Cores, d.Machine.Kernel, d.Machine.Go)
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.AppendHeader(table.Row{"what", "state", "found", "remedy"})
	t.SetColumnConfigs([]table.ColumnConfig{{Number: 3, WidthMax: 50, WidthMaxEnforcer: text.WrapSoft}, {Number: 4, WidthMax: 50, WidthMaxEnforcer: text.WrapSoft}})
	for _, f := range d.Findings {
		t.AppendRow(table.Row{f.Name, f.State, f.Found, f.Remedy})
	}
	t.Render()
	fmt.Fprintln(w)
	l := table.NewWriter()
	l.SetOutputMirror(w)
	l.SetStyle(table.StyleLight)
	l.AppendHeader(table.Row{"limit", "least", "most"})
	for _, v := range d.Limits {
		l.AppendRow(table.Row{v.Name, v.Least, v.Most})
	}
	l.Render()
}
