//go:build verbs && cgo && linux

package verbs

import (
	"fmt"
	"net/netip"

	"moerail/internal/ibv"
)

// chooseGID picks the line of a port's GID table to use. On Ethernet that is, in
// this order, RoCE v2 with a global address, RoCE v2 with a link-local one, then
// RoCE v1 likewise; among equals the first. want names a line; -1 chooses.
func chooseGID(table []ibv.GIDEntry, port int, ethernet bool, want int) (ibv.GIDEntry, error) {
	best, bestScore, lines := ibv.GIDEntry{}, 0, 0
	for _, e := range table {
		if e.Port != port || e.GID == [16]byte{} {
			continue
		}
		lines++
		if want >= 0 && e.Index != want {
			continue
		}
		if s := scoreGID(e, ethernet); s > bestScore {
			best, bestScore = e, s
		}
	}
	if bestScore == 0 {
		if want >= 0 {
			return best, fmt.Errorf("GID index %d of port %d is empty; the table has %d lines in use", want, port, lines)
		}
		return best, fmt.Errorf("port %d has no GID: give its network interface an address", port)
	}
	return best, nil
}

func scoreGID(e ibv.GIDEntry, ethernet bool) int {
	if !ethernet {
		return 1
	}
	s := 1
	if e.Type == ibv.GIDRoCEv2 {
		s += 2
	}
	if !netip.AddrFrom16(e.GID).IsLinkLocalUnicast() {
		s++
	}
	return s
}
