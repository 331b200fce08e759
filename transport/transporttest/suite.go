package transporttest

import "testing"

// Run runs the suite against h, as subtests of t.
func Run(t *testing.T, h Harness) {
	if h.NICs == 0 {
		h.NICs = 1
	}
	if h.MaxBytes == 0 {
		h.MaxBytes = 64 << 20
	}
	for _, c := range []struct {
		name string
		run  func(*testing.T, Harness)
	}{
		{"Identity", testIdentity},
		{"WriteSizes", testWriteSizes},
		{"Immediates", testImmediates},
		{"EmptyWriteImm", testEmptyWriteImm},
		{"Inline", testInline},
		{"Read", testRead},
		{"CompareSwap", testCompareSwap},
		{"FetchAdd", testFetchAdd},
		{"AtomicsFromManyRanks", testAtomicsFromManyRanks},
		{"MessageSizes", testMessageSizes},
		{"MessageBeforeReceive", testMessageBeforeReceive},
		{"MessageSourceClosed", testMessageSourceClosed},
		{"MessageTruncated", testMessageTruncated},
		{"Scatter", testScatter},
		{"ScatterRefused", testScatterRefused},
		{"TwoSlotsTenThousandWrites", testTwoSlots},
		{"OneReceiveManyImmediates", testOneReceive},
		{"ReceiveDepth", testReceiveDepth},
		{"OutOfRange", testOutOfRange},
		{"ForeignHandles", testForeignHandles},
		{"BadRequests", testBadRequests},
		{"AccessRights", testAccessRights},
		{"RevokedRegion", testRevokedRegion},
		{"ForeignKey", testForeignKey},
		{"BadAddresses", testBadAddresses},
		{"BadKeys", testBadKeys},
		{"AlteredKeys", testAlteredKeys},
		{"BadRegistrations", testBadRegistrations},
		{"Seams", testSeams},
		{"RemovePeer", testRemovePeer},
		{"CloseTwice", testCloseTwice},
		{"CloseInFlight", testCloseInFlight},
		{"PeerCloses", testPeerCloses},
		{"Reopened", testReopened},
		{"SeveralNICs", testSeveralNICs},
		{"ConcurrentRanks", testConcurrentRanks},
		{"MapRemote", testMapRemote},
		{"Wake", testWake},
		{"AllocatesNothing", testAllocatesNothing},
		{"Stats", testStats},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, h) })
	}
}
