package peergroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// childVariable makes this test binary one rank of a job.
const childVariable = "PEERGROUP_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		if err := child(); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child joins as its environment says, agrees once and then waits in a
// collective that rank 2, killed, never joins.
func child() error {
	cfg, err := FromEnv(os.Getenv)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	g, err := JoinTCP(ctx, cfg)
	if err != nil {
		return err
	}
	defer g.Close()
	if err := Agree(ctx, g, "config", []Param{{"hidden", "256"}}); err != nil {
		return err
	}
	fmt.Println("agreed")
	if g.Rank() == 2 {
		select {} // until killed
	}
	start := time.Now()
	err = Barrier(ctx, g, "never")
	var lost *LostError
	if !errors.As(err, &lost) || lost.Rank != 2 || lost.Reason != LossConnection {
		return fmt.Errorf("barrier: %v, want rank 2 lost", err)
	}
	if d := time.Since(start); d > 30*time.Second {
		return fmt.Errorf("told only after %v", d)
	}
	fmt.Println("lost rank 2")
	return nil
}

// Four processes; rank 2 is killed while the others wait for it.
func TestProcesses(t *testing.T) {
	const size = 4
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	procs := make([]*exec.Cmd, size)
	lines := make([]*bufio.Scanner, size)
	for _, r := range []int{2, 1, 3, 0} { // rank 0 last
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), childVariable+"=1",
			fmt.Sprint("RANK=", r), fmt.Sprint("WORLD_SIZE=", size), "MASTER_ADDR=localhost", "MASTER_PORT="+port,
			EnvSecret+"="+string(testSecret), EnvSecretFile+"=", EnvAddr+"=")
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		procs[r], lines[r] = cmd, bufio.NewScanner(out)
	}
	for r, l := range lines {
		if !l.Scan() || l.Text() != "agreed" {
			t.Fatalf("rank %d says %q, want agreed", r, l.Text())
		}
	}
	procs[2].Process.Kill()
	procs[2].Wait()
	for _, r := range []int{0, 1, 3} {
		var rest []string
		for lines[r].Scan() {
			rest = append(rest, lines[r].Text())
		}
		if text := strings.Join(rest, "\n"); text != "lost rank 2" {
			t.Errorf("rank %d says %q", r, text)
		}
		if err := procs[r].Wait(); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}
