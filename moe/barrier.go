package moe

import (
	"context"
	"fmt"
	"time"

	"moerail/transport/engine"
)

// Barrier returns when every rank has entered it. It uses the fabric, is not
// counted in Stats, and may be called between rounds or during them, by one
// goroutine at a time.
func (c *Communicator) Barrier(ctx context.Context) error {
	if c.ranks == 1 {
		return c.failed()
	}
	b := c.barrier
	want := b.entered.Add(1)
	c.engine.Wake()
	limit := time.Now().Add(c.cfg.Deadline)
	for i := 0; b.passed.Load() < want; i++ {
		if err := c.failed(); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if i%64 == 63 && time.Now().After(limit) {
			var late []int
			_ = c.engine.Call(func(*engine.Worker) {
				for q, n := range b.got {
					if q != c.rank && n < want {
						late = append(late, q)
					}
				}
			})
			return &RoundError{Code: CodeDeadline, Phase: PhaseBarrier, Ranks: late, Token: -1, Pick: -1,
				What: fmt.Sprintf("deadline of %v passed, waiting for %s", c.cfg.Deadline, ranksText(late))}
		}
		pause(i)
	}
	return nil
}
