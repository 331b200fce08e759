package peergroup

// NewLocal returns a group of n ranks in this process, entry r for rank r. It
// returns nil if n is not 1 to MaxRanks.
func NewLocal(n int) []Group {
	if n < 1 || n > MaxRanks {
		return nil
	}
	h := newHub(n, true)
	groups := make([]Group, n)
	for r := range groups {
		groups[r] = newLocalRank(h, r, n)
	}
	return groups
}

// localRank is a rank in the hub's own process: its calls are calls of the hub.
type localRank struct {
	*member
	hub *hub
}

func newLocalRank(h *hub, rank, size int) *localRank {
	l := &localRank{member: newMember(rank, size, 0), hub: h}
	l.member.up = l
	h.take(rank, l.member, func(sink) bool { return false })
	return l
}

func (l *localRank) contribute(id uint32, key string, blob []byte) {
	if err := l.hub.contribute(l.rank, l.member, id, key, blob); err != nil {
		l.finish(id, err)
	}
}

func (l *localRank) withdraw(id uint32) { l.hub.withdraw(l.rank, l.member, id) }

// Close implements Group.
func (l *localRank) Close() error {
	l.member.close()
	l.hub.leave(l.rank, l.member, LossClosed)
	return nil
}
