package rounds

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"moerail/peergroup"
)

// Job is a process for each rank on this host.
type Job struct {
	Program string
	Args    []string // the same for all; they find their rank with Join
	Ranks   int
	// Grace is how long the others may go on when one has failed, to notice and say so.
	Grace time.Duration
}

// Spawn runs a job, launched by environment, and returns what rank 0 wrote to
// standard output and who failed first, nil if nobody did. err is about starting,
// or says that ctx ended. No child outlives this process, nor ctx.
func Spawn(ctx context.Context, j Job) (out []byte, failed *ChildError, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, fmt.Errorf("rendezvous: %w", err)
	}
	defer listener.Close()
	inherited, err := listener.(*net.TCPListener).File()
	if err != nil {
		return nil, nil, fmt.Errorf("rendezvous: %w", err)
	}
	defer inherited.Close()
	secret := make([]byte, 16)
	rand.Read(secret)

	running, cancel := context.WithCancel(ctx)
	defer cancel()
	var first strings.Builder
	children := make([]*child, j.Ranks)
	for p := range children {
		children[p] = &child{rank: p}
		cmd := exec.CommandContext(running, j.Program, j.Args...)
		cmd.Env = append(cleanEnv(os.Environ()),
			"RANK="+strconv.Itoa(p), "LOCAL_RANK="+strconv.Itoa(p), "WORLD_SIZE="+strconv.Itoa(j.Ranks),
			peergroup.EnvAddr+"="+listener.Addr().String(), peergroup.EnvSecret+"="+hex.EncodeToString(secret),
			"GOMAXPROCS="+strconv.Itoa(max(1, runtime.NumCPU()/j.Ranks)))
		if p == 0 {
			cmd.Env = append(cmd.Env, envListener+"=1")
			cmd.ExtraFiles = []*os.File{inherited}
			cmd.Stdout = &first
		}
		cmd.Stderr = &children[p].said
		// The kernel kills the child when the thread that started it ends; see waitAll.
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		cmd.WaitDelay = time.Second
		children[p].cmd = cmd
	}
	worst := waitAll(children, cancel, j.Grace)
	if ctx.Err() != nil {
		return nil, nil, errInterrupted
	}
	if worst != nil {
		failed = blame(children, worst)
	}
	return []byte(first.String()), failed, nil
}
