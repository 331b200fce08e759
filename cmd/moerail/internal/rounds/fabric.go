package rounds

import (
	"context"
	"errors"
	"fmt"
	"os"

	"moerail/cmd/moerail/internal/fabrics"
	"moerail/peergroup"
)

// resolveFabric replaces auto and refuses what this build or launch has not.
func (o *Options) resolveFabric() error {
	name, err := fabrics.Resolve(o.Fabric, o.Launch == "inproc")
	if err != nil {
		return &OptionError{"fabric", err.Error()}
	}
	o.Fabric = name
	return nil
}

// openFabric opens the fabric for the ranks of this process; seat is nil where
// these are all. Everything that can go wrong here is for the caller of the
// command to mend.
func (o *Options) openFabric(ctx context.Context, seat *Seat) (*fabrics.Set, error) {
	cfg := fabrics.Config{Fabric: o.Fabric, NICs: o.NICs, RanksPerNode: o.RanksPerNode, Getenv: os.Getenv}
	if seat != nil {
		cfg.Toward, cfg.LocalRank = seat.Addr, seat.LocalRank
	}
	set, err := fabrics.Open(ctx, cfg)
	if err != nil {
		return nil, &OptionError{"fabric", err.Error()}
	}
	return set, nil
}

// shareFabric opens the fabric on every rank of a job, or fails on every rank: one
// that cannot have it would leave the others waiting, and so would one whose
// provider is another, or whose interface ends at its host.
func (o *Options) shareFabric(ctx context.Context, seat *Seat) (*fabrics.Set, error) {
	limited, cancel := context.WithTimeout(ctx, setupDeadline)
	defer cancel()
	g := seat.Group
	set, mine := o.openFabric(limited, seat)
	said := []byte{}
	if mine != nil {
		said = []byte(mine.Error())
		said = said[:min(len(said), maxReason)]
	}
	all, err := g.AllGather(limited, "run/fabric", said)
	if err != nil {
		return nil, errors.Join(mine, err)
	}
	if mine != nil {
		return nil, mine
	}
	for p, text := range all {
		if len(text) > 0 {
			return nil, &OptionError{"fabric", fmt.Sprintf("cannot be had on rank %d: %s", p, text)}
		}
	}
	err = peergroup.Agree(limited, g, "run/fabric", []peergroup.Param{
		{Name: "fabric", Value: set.Name()},
		{Name: "reach of the interface", Value: set.Reach()},
	})
	var mismatch *peergroup.MismatchError
	if errors.As(err, &mismatch) && len(mismatch.Fields) == 1 && mismatch.Fields[0].Name != "fabric" {
		err = fmt.Errorf("%w; remedy: let MASTER_ADDR be an address that every host reaches by its network, or name the interface in %s", err, fabrics.EnvNICs)
	}
	if err != nil {
		return nil, err
	}
	return set, nil
}

// maxReason bounds what one rank tells the others of why it cannot go on.
const maxReason = 4096
