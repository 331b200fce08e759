package transporttest

import (
	"slices"
	"testing"
)

// Run runs the suite against h, as subtests of t; with names, only those tests
// of it. A name that the suite does not have fails t.
func Run(t *testing.T, h Harness, only ...string) {
	t.Helper()
	if h.NICs == 0 {
		h.NICs = 1
	}
	if h.MaxBytes == 0 {
		h.MaxBytes = 64 << 20
	}
	tests := []struct {
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
	}
	ran := 0
	for _, c := range tests {
		if len(only) > 0 && !slices.Contains(only, c.name) {
			continue
		}
		ran++
		t.Run(c.name, func(t *testing.T) { c.run(t, h) })
	}
	if len(only) > 0 && ran != len(only) {
		t.Errorf("the suite has %d tests of the names %v", ran, only)
	}
}
