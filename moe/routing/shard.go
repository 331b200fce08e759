package routing

// Shards is into how many writes a block of that many bytes is cut: one, or as
// many as keep each above half of ShardBytes, at most one a NIC. None is empty,
// however small ShardBytes is. Sender and receiver compute it alike.
func (pl *Plan) Shards(bytes uint64) uint32 {
	n := min((bytes+pl.ShardBytes-1)/pl.ShardBytes, uint64(pl.NumNICs))
	if n <= 1 {
		return 1
	}
	chunk := chunkBytes(bytes, n)
	return uint32((bytes + chunk - 1) / chunk)
}

// chunkBytes is the size of every shard of n but the last.
func chunkBytes(bytes, n uint64) uint64 { return roundUp((bytes+n-1)/n, 64) }

// ShardRange is shard i of n: together the shards cover [0, bytes) once. Cuts
// fall on multiples of 64.
func ShardRange(bytes uint64, n, i uint32) (off, length uint64) {
	chunk := chunkBytes(bytes, uint64(n))
	off = min(uint64(i)*chunk, bytes)
	return off, min(chunk, bytes-off)
}

// ShardNIC deals shard i of the block for peer q to a NIC, so that first shards
// spread over the NICs too.
func (pl *Plan) ShardNIC(q int, i uint32) int8 {
	return int8((uint32(q) + i) % uint32(pl.NumNICs))
}

// BlockBytes is the size of a dispatch block of that many rows.
func (pl *Plan) BlockBytes(rows uint32) uint64 {
	return uint64(pl.Shape.HeaderBytes) + uint64(rows)*uint64(pl.Shape.RowBytes)
}

// ReturnBytes is the size of a return block of that many rows.
func (pl *Plan) ReturnBytes(rows uint32) uint64 {
	return uint64(rows) * uint64(pl.Shape.ReturnRowBytes)
}

// Immediates. A slot has Kinds() of them for each source rank, so a receiver
// knows from the number alone whose data arrived: it can say who is late without
// reading memory that may be a GPU's.

// Kind is what an immediate announces.
type Kind uint8

const (
	KindDispatch Kind = iota // a block, or its first shard; Further more shards follow
	KindPayload              // a further shard; on the exact path any shard
	KindCombine              // a shard of a return block
	KindRoute                // a row of the route table (exact path)
)

// Meaning is an immediate, decoded.
type Meaning struct {
	Kind    Kind
	Parity  uint8
	Further uint8
	Slot    uint8
}

// kinds is the number of immediates of one slot and source: DISPATCH has a
// parity and a count of further shards, PAYLOAD and ROUTE a parity.
func (pl *Plan) kinds() uint32 { return uint32(2*pl.NumNICs + 2 + 1 + 2) }

// NumImms is the size of the range of immediates that a communicator needs.
func (pl *Plan) NumImms() uint32 { return uint32(pl.Slots) * pl.kinds() * pl.Shape.NumRanks }

// ImmIndex is the position in the range of what this rank announces.
func (pl *Plan) ImmIndex(m Meaning) uint32 {
	var k uint32
	switch m.Kind {
	case KindDispatch:
		k = uint32(m.Parity)*uint32(pl.NumNICs) + uint32(m.Further)
	case KindPayload:
		k = uint32(2*pl.NumNICs) + uint32(m.Parity)
	case KindCombine:
		k = uint32(2*pl.NumNICs) + 2
	case KindRoute:
		k = uint32(2*pl.NumNICs) + 3 + uint32(m.Parity)
	}
	return (uint32(m.Slot)*pl.kinds()+k)*pl.Shape.NumRanks + pl.Shape.Rank
}

// Meanings decodes every index of a range divided by NumRanks; the remainder is
// the source rank.
func (pl *Plan) Meanings() []Meaning {
	out := make([]Meaning, 0, uint32(pl.Slots)*pl.kinds())
	for s := range pl.Slots {
		for parity := range 2 {
			for k := range pl.NumNICs {
				out = append(out, Meaning{KindDispatch, uint8(parity), uint8(k), uint8(s)})
			}
		}
		out = append(out,
			Meaning{KindPayload, 0, 0, uint8(s)}, Meaning{KindPayload, 1, 0, uint8(s)},
			Meaning{KindCombine, 0, 0, uint8(s)},
			Meaning{KindRoute, 0, 0, uint8(s)}, Meaning{KindRoute, 1, 0, uint8(s)})
	}
	return out
}
