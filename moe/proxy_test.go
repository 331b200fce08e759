package moe

import "testing"

// TestProxyWorkDoesNotGrowWithTokens: what a proxy does in a round is bounded by
// the ranks, however many tokens there are: at most two messages for each peer,
// each posted once, and a turn for each word, arrival and completion at most.
func TestProxyWorkDoesNotGrowWithTokens(t *testing.T) {
	for _, ranks := range []int{2, 8} {
		for _, n := range []int{1, 64, 1024} {
			w := newWorld(t, setting{ranks: ranks, cfg: Config{
				NumExperts: 2 * ranks, TopK: 2, Hidden: 4, MaxTokens: n, DType: BF16, OutDType: BF16,
			}})
			toks := w.full()
			const rounds = 4
			for range rounds {
				w.quiet(0, toks)
			}
			limit := uint64(2 * (ranks - 1) * rounds)
			for r, c := range w.cs {
				st := c.Stats()
				if st.Messages > limit || st.Posts > st.Messages || st.ProxySteps > 4*limit {
					t.Errorf("%d ranks, %d tokens, rank %d: %d messages in %d posts, %d turns in %d rounds",
						ranks, n, r, st.Messages, st.Posts, st.ProxySteps, rounds)
				}
			}
			w.close()
		}
	}
}
