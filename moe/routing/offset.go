package routing

// Offsets into the inbox of a rank.

// WindowOffset is where source src's block of a round of this parity lies.
func (pl *Plan) WindowOffset(slot, parity, src int) uint64 {
	return uint64(slot)*pl.slotIn.bytes + pl.slotIn.window[parity] + uint64(src)*pl.Shape.WindowStride
}

// OverflowOffset is the start of a slot's overflow area.
func (pl *Plan) OverflowOffset(slot int) uint64 {
	return uint64(slot)*pl.slotIn.bytes + pl.slotIn.overflow
}

// ReturnOffset is where peer q's return block lies.
func (pl *Plan) ReturnOffset(slot, q int) uint64 {
	return uint64(slot)*pl.slotIn.bytes + pl.slotIn.returnWindow + uint64(q)*pl.Shape.ReturnStride
}

// DirectDispatchOffset is the flag word that rank p writes after storing a block.
func (pl *Plan) DirectDispatchOffset(slot, parity, p int) uint64 {
	return uint64(slot)*pl.slotIn.bytes + pl.slotIn.directDispatch +
		uint64(parity)*uint64(pl.Shape.NumRanks)*FlagStride + uint64(p)*FlagStride
}

// DirectCombineOffset is the flag word that rank q writes after storing return rows.
func (pl *Plan) DirectCombineOffset(slot, q int) uint64 {
	return uint64(slot)*pl.slotIn.bytes + pl.slotIn.directCombine + uint64(q)*FlagStride
}

// Offsets into the outbox of this rank.

// SendOffset is the block for peer q.
func (pl *Plan) SendOffset(slot, q int) uint64 {
	return uint64(slot)*pl.slotOut.bytes + pl.slotOut.send + uint64(q)*pl.Shape.SendStride
}

// ReturnSendOffset is the return block for source s.
func (pl *Plan) ReturnSendOffset(slot, s int) uint64 {
	return uint64(slot)*pl.slotOut.bytes + pl.slotOut.returnSend + uint64(s)*pl.Shape.ReturnSendStride
}

// LaneSource is the rank of src's replica group whose rows this rank receives.
func (pl *Plan) LaneSource(src int) int {
	rep := int(pl.Shape.Replicas)
	return src/rep*rep + int(pl.Shape.Rank)%rep
}
