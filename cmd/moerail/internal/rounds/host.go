package rounds

import (
	"bytes"
	"context"
	"fmt"
	"os"

	"moerail/cmd/moerail/internal/fabrics"
	"moerail/peergroup"
)

// sameHost refuses a job over several hosts when the fabric ends at one. Hosts
// are told apart by their kernel's boot id.
func sameHost(ctx context.Context, o *Options, g peergroup.Group) error {
	if !fabrics.OneHost(o.Fabric) {
		return nil
	}
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		id = nil // not known: the fabric itself will say
	}
	limited, cancel := context.WithTimeout(ctx, setupDeadline)
	defer cancel()
	all, err := g.AllGather(limited, "run/host", id)
	if err != nil {
		return err
	}
	for p, other := range all {
		if len(id) > 0 && len(other) > 0 && !bytes.Equal(id, other) {
			return fmt.Errorf("rank %d is on another host than rank %d: --fabric %s joins processes of one host; between hosts use efa, verbs or libfabric:tcp", p, g.Rank(), o.Fabric)
		}
	}
	return nil
}
