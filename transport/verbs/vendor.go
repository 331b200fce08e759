//go:build verbs && cgo && linux

package verbs

import (
	"fmt"

	"moerail/internal/ibv"
)

// vendorOf packs what a device says about a failed request into
// transport.Completion.Vendor: the completion status in the upper 8 bits, the
// vendor's own code in the rest.
func vendorOf(s ibv.WCStatus, code uint32) uint32 { return uint32(s)<<24 | code&0xffffff }

// VendorText says what a Completion.Vendor of this provider means: the status of
// the work completion and the vendor's code. Where the request was refused when
// it was posted, the code is the errno and there is no status.
func VendorText(v uint32) string {
	if v == 0 {
		return "no code of the device"
	}
	if v>>24 == 0 {
		return fmt.Sprintf("errno %d", v)
	}
	return fmt.Sprintf("%s (work completion status %d, vendor code %#x)", ibv.WCStatus(v>>24), v>>24, v&0xffffff)
}
