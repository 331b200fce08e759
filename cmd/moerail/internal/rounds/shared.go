package rounds

import (
	"context"

	"moerail/cmd/moerail/internal/fabrics"
)

// OpenShared opens a resolved fabric with nics NICs for a rank of a job that is not
// a run. It fails on every rank if it cannot be had on one, or is not the same
// on all.
func OpenShared(ctx context.Context, fabric string, nics int, seat *Seat) (*fabrics.Set, error) {
	o := &Options{Fabric: fabric, NICs: nics}
	if err := sameHost(ctx, o, seat.Group); err != nil {
		return nil, err
	}
	return o.shareFabric(ctx, seat)
}
