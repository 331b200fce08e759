//go:build verbs && cgo && linux

package verbs

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"moerail/transport"
	"moerail/transport/transporttest"
)

// The tests of this file need RDMA devices; names end in _RDMA. They run in a VM
// with Soft-RoCE, whose tool says how many nodes to pretend:
//
//	go test -c -tags verbs -o verbs.test ./transport/verbs
//	rxe-vm --nodes 2 --devices 2 -- ./verbs.test -test.run _RDMA

// needDevices skips where there are none.
func needDevices(t testing.TB, cfg Config) *Provider {
	t.Helper()
	p, err := New(cfg)
	if errors.Is(err, ErrNoLibrary) || errors.Is(err, ErrNoDevice) {
		t.Skipf("no RDMA device: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// topology is how the VM's devices are dealt to nodes; elsewhere every device is
// a node.
func topology(t testing.TB, p *Provider) (nodes, nics int) {
	number := func(name string, def int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
			return n
		}
		return def
	}
	nodes, nics = number("RXE_NODES", len(p.nics)), number("RXE_DEVICES_PER_NODE", 1)
	if nodes*nics > len(p.nics) {
		t.Fatalf("%d nodes of %d devices are announced, there are %d", nodes, nics, len(p.nics))
	}
	return nodes, nics
}

func TestConformance_RDMA(t *testing.T) {
	p := needDevices(t, DefaultConfig())
	nodes, nics := topology(t, p)
	t.Logf("%d nodes of %d devices, in one process", nodes, nics)
	h := harness(p, nodes, nics, transport.DomainConfig{})
	h.Patience = 4 * patience
	transporttest.Run(t, h)
}

// Regions in pieces, which no device at hand needs, and queues of a few requests.
func TestPiecesAndSmallQueues_RDMA(t *testing.T) {
	p := needDevices(t, Config{GIDIndex: -1, MaxRegion: 1 << 18, SendDepth: 2, ImmDepth: 3, MTU: 1024, StrictOrdering: true})
	nodes, nics := topology(t, p)
	h := harness(p, nodes, nics, transport.DomainConfig{MaxSend: 3, MaxRecv: 70})
	h.Patience = 4 * patience
	transporttest.Run(t, h, "Seams", "Immediates", "MessageSizes", "OneReceiveManyImmediates", "RemovePeer")
}
