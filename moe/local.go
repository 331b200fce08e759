package moe

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"moerail/peergroup"
	"moerail/transport/loopback"
)

// NewLocal makes a communicator for each of a number of ranks in this process,
// over a loopback fabric of their own: for tests, examples and single-host use.
// mutate, if not nil, may change each rank's Config before New sees it; a
// Provider or Engine set in cfg or by mutate is used instead of the loopback.
// On an error every communicator that was made is closed.
func NewLocal(ctx context.Context, ranks int, cfg Config, mutate func(rank int, c *Config)) ([]*Communicator, error) {
	if ranks < 1 {
		return nil, fmt.Errorf("moe: %d ranks, want 1 or more", ranks)
	}
	fabric, err := loopback.New(loopback.Config{})
	if err != nil {
		return nil, err
	}
	groups := peergroup.NewLocal(ranks)
	out, errs := make([]*Communicator, ranks), make([]error, ranks)
	var wg sync.WaitGroup
	for r := range ranks {
		c := cfg
		c.Group = groups[r]
		if c.Provider == nil && c.Engine == nil {
			c.Provider = fabric.Process(fmt.Sprintf("rank%d", r), "host")
		}
		if c.NICs == nil {
			c.NICs = []string{"lo0"}
		}
		if mutate != nil {
			mutate(r, &c)
		}
		wg.Go(func() { out[r], errs[r] = New(ctx, c) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		for _, c := range out {
			if c != nil {
				err = errors.Join(err, c.Close())
			}
		}
		return nil, err
	}
	return out, nil
}
