package main
import "github.com/spf13/cobra"
func newExec() *cobra.Command { return &cobra.Command{Use:"exec"} }
func newDoctor() *cobra.Command { return &cobra.Command{Use:"doctor"} }
