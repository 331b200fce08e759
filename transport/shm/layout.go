package shm

// The layout of what two processes share. It is fixed by layoutVersion: both
// sides of a lane have agreed on that before either maps anything.
const (
	layoutVersion = 1

	// A lane carries what one sender tells one receiver. The receiver makes it.
	//
	//	offset  written by  content
	//	0       receiver    state: laneOpen or laneClosed
	//	64      receiver    number of immediates taken
	//	128     receiver    bytes of the message ring taken
	//	192     sender      bytes of the message ring filled
	//	256     sender      immediates, one word each
	//	...     sender      message ring
	laneStateOff   = 0
	laneImmHeadOff = 64
	laneMsgHeadOff = 128
	laneMsgTailOff = 192
	laneImmOff     = 256
	laneMsgOff     = laneImmOff + 8*immSlots
	laneBytes      = laneMsgOff + msgRingBytes

	laneOpen   = 0
	laneClosed = 1

	immSlots     = 1024      // immediates that may wait in one lane
	msgRingBytes = 512 << 10 // bytes of messages that may wait in one lane
	msgHeadBytes = 8         // each message starts with its length
	maxRecvSize  = 256 << 10 // the longest message; always fits an empty ring

	maxLanes    = 512 // senders of one domain
	laneWords   = maxLanes / 64
	maxRegions  = 4096 // regions of one domain that are open to peers
	regionBytes = 8 * maxRegions
	bellBytes   = 8 * laneWords

	// maxMessage keeps a length within the 31 bits that an immediate has for it.
	maxMessage = 1<<31 - 1
)

// An immediate is one word, so that it is published by one store and can not be
// torn: bit 63 is the lap, bits 32 to 62 the length of the write, the rest the
// immediate. The lap bit is 1 on the first way round, then 0, and so on; a word
// whose lap bit is not the expected one is not there yet.
func immWord(seq uint64, imm uint32, length uint64) uint64 {
	return lapOf(seq)<<63 | length&maxMessage<<32 | uint64(imm)
}

func lapOf(seq uint64) uint64 { return ^(seq / immSlots) & 1 }

func padded(n uint64) uint64 { return (n + 7) &^ 7 }
