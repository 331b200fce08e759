//go:build libfabric && cgo

package efa

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"moerail/internal/fabric"
)

// offer is one device of one provider, with what it can do.
type offer struct {
	info     *fabric.Info
	features Features
	missing  []string
	device   bool // memory of GPUs can be registered
	efa      bool
}

// software providers run over sockets or shared memory of the host: a device may
// be opened several times, and several are no rails of one network.
var software = []string{"tcp", "net", "shm", "udp", "sockets", "ofi_rxm", "ofi_rxd", "lnx", "sm2"}

// untrusted lists what providers claim and do wrong in a way that trying would
// not survive. Checked with the versions named.
var untrusted = []struct {
	layer string
	what  string
}{
	{"ofi_rxd", "atomics of libfabric 1.17's ofi_rxd give wrong values and then crash"},
}

func layers(provider string) []string { return strings.Split(provider, ";") }

func isSoftware(provider string) bool {
	return slices.ContainsFunc(layers(provider), func(l string) bool { return slices.Contains(software, l) })
}

// attempts are the hints tried for a provider, best first: providers answer only
// to what they fully have.
var attempts = []struct {
	caps, mode uint64
}{
	{fabric.CapTagged | fabric.CapAtomic, 0},
	{fabric.CapTagged, 0},
	{fabric.CapTagged | fabric.CapAtomic, fabric.ModeRxCQData},
	{fabric.CapTagged, fabric.ModeRxCQData},
	{0, 0},
}

const (
	baseCaps = fabric.CapMessage | fabric.CapRMA
	baseMode = fabric.ModeContext | fabric.ModeContext2
	// All that is known, so that what is not supported can be refused by name.
	everyMRMode = fabric.MRLocal | fabric.MRRaw | fabric.MRVirtAddr | fabric.MRAllocated | fabric.MRProvKey | fabric.MRMMUNotify |
		fabric.MRRMAEvent | fabric.MREndpoint | fabric.MRCollective
)

// wanted lists the names that a configured provider may have, best first.
func wanted(provider string) []string {
	switch provider {
	case "":
		return []string{defaultProvider}
	case "tcp":
		return []string{"tcp", "net", "tcp;ofi_rxm"}
	}
	return []string{provider}
}

// offers finds the devices of a provider, in the order in which they are opened.
func offers(lib *fabric.Library, provider string, device bool) ([]*offer, error) {
	var last error
	for _, a := range attempts {
		h := fabric.Hints{Caps: baseCaps | a.caps, Mode: baseMode | a.mode, MRMode: everyMRMode, Provider: provider}
		if device {
			h.Caps |= fabric.CapHMEM
			h.MRMode |= fabric.MRHMEM
		}
		infos, err := lib.Infos(h)
		if err != nil {
			last = err
			if e := (*fabric.Error)(nil); errors.As(err, &e) && e.Errno == fabric.ErrnoNoData {
				continue
			}
			return nil, err
		}
		infos = slices.DeleteFunc(infos, func(i *fabric.Info) bool { return i.Provider != provider })
		if len(infos) == 0 {
			continue
		}
		// One device may appear with several addresses.
		slices.SortStableFunc(infos, func(x, y *fabric.Info) int { return cmp.Compare(addressRank(x), addressRank(y)) })
		var out []*offer
		var refusals []error
		seen := map[string]bool{}
		for _, i := range infos {
			if seen[i.Domain] {
				continue
			}
			seen[i.Domain] = true
			if err := usable(i); err != nil {
				refusals = append(refusals, err)
				continue
			}
			out = append(out, describe(i, a.caps, device))
		}
		if len(out) > 0 {
			return out, nil
		}
		last = errors.Join(refusals...)
	}
	if last == nil { // the library answers to parts of a name too, with other providers
		last = errors.New("no provider of exactly this name has reliable datagrams with one-sided writes")
	}
	return nil, last
}

// addressRank puts loopback last, IPv4 before IPv6, and addresses that hold only
// with an interface after all others.
func addressRank(i *fabric.Info) int {
	rank := 0
	switch {
	case i.AddrFormat == fabric.FormatSockaddrIn && len(i.Source) >= 8:
		if net.IP(i.Source[4:8]).IsLoopback() {
			rank = 100
		}
	case i.AddrFormat == fabric.FormatSockaddrIn6 && len(i.Source) >= 24:
		rank = 10
		if ip := net.IP(i.Source[8:24]); ip.IsLoopback() {
			rank = 110
		} else if ip.IsLinkLocalUnicast() {
			rank = 20
		}
	}
	return rank
}

// usable refuses, by name, what a provider wants and this package does not do.
func usable(i *fabric.Info) error {
	var wants []string
	for _, m := range []struct {
		bit  int
		name string
	}{
		{fabric.MRRaw, "FI_MR_RAW (keys longer than 8 bytes)"},
		{fabric.MRMMUNotify, "FI_MR_MMU_NOTIFY (being told of every new mapping)"},
	} {
		if i.MRMode&m.bit != 0 {
			wants = append(wants, m.name)
		}
	}
	for _, m := range []struct {
		bit  uint64
		name string
	}{
		{fabric.ModeMsgPrefix, "FI_MSG_PREFIX"}, {fabric.ModeAsyncIOV, "FI_ASYNC_IOV"}, {fabric.ModeRestricted, "FI_RESTRICTED_COMP"},
		{fabric.ModeNotifyOnly, "FI_NOTIFY_FLAGS_ONLY"}, {fabric.ModeBuffered, "FI_BUFFERED_RECV"},
	} {
		if i.Mode&m.bit != 0 {
			wants = append(wants, m.name)
		}
	}
	if i.Mode&fabric.ModeRxCQData != 0 && i.Caps&fabric.CapTagged == 0 {
		wants = append(wants, "FI_RX_CQ_DATA without tagged messages, which keep receives for immediates and for messages apart")
	}
	if i.KeyBytes > 8 {
		wants = append(wants, fmt.Sprintf("keys of %d bytes", i.KeyBytes))
	}
	if i.PrefixBytes > 0 {
		wants = append(wants, fmt.Sprintf("a prefix of %d bytes", i.PrefixBytes))
	}
	if i.RemoteIOV < 1 || i.SendIOV < 1 {
		wants = append(wants, fmt.Sprintf("requests of %d local and %d remote segments, not one", i.SendIOV, i.RemoteIOV))
	}
	if wants == nil {
		return nil
	}
	return fmt.Errorf("%s on %s wants %s, which is not supported", i.Provider, i.Domain, strings.Join(wants, ", "))
}

// describe reads what a provider says of itself; try finds what is true.
func describe(i *fabric.Info, caps uint64, device bool) *offer {
	o := &offer{info: i, device: device, efa: slices.Contains(layers(i.Provider), "efa")}
	o.features = Features{
		RMA: true, Read: true, Atomic: caps&fabric.CapAtomic != 0, Tagged: caps&fabric.CapTagged != 0,
		ImmBytes: int(min(i.CQDataBytes, 8)), InjectBytes: i.InjectBytes, MaxMessage: i.MaxMessage, SendQueue: i.SendQueue,
		MRMode: mrModeText(i.MRMode), AddrFormat: formatName(i.AddrFormat), Progress: "manual",
	}
	if i.MaxMessage >= 1<<62 {
		o.features.MaxMessage = 0
	}
	if i.DataAuto {
		o.features.Progress = "auto"
	}
	if o.features.ImmBytes < 4 {
		o.features.ImmBytes = 0
		o.lacks("immediates", fmt.Sprintf("%d bytes beside a write, 4 are needed", i.CQDataBytes))
	}
	if !o.features.Tagged {
		o.missing = append(o.missing, "no tagged messages: messages do not say who sends, nor for which life they are meant")
	}
	if !o.features.Atomic {
		o.lacks("atomics", "not offered")
	}
	for _, u := range untrusted {
		if slices.Contains(layers(i.Provider), u.layer) && o.features.Atomic {
			o.features.Atomic = false
			o.lacks("atomics", u.what)
		}
	}
	return o
}

// consequences says what a user loses.
var consequences = map[string]string{
	"immediates": "rounds, which count immediates, can not run over it",
	"reads":      "OpRead is refused",
	"atomics":    "OpFetchAdd and OpCompareSwap are refused",
}

func (o *offer) lacks(what, why string) {
	o.missing = append(o.missing, fmt.Sprintf("no %s (%s): %s", what, why, consequences[what]))
}

func mrModeText(m int) string {
	var names []string
	for _, b := range []struct {
		bit  int
		name string
	}{
		{fabric.MRLocal, "FI_MR_LOCAL"}, {fabric.MRRaw, "FI_MR_RAW"}, {fabric.MRVirtAddr, "FI_MR_VIRT_ADDR"}, {fabric.MRAllocated, "FI_MR_ALLOCATED"},
		{fabric.MRProvKey, "FI_MR_PROV_KEY"}, {fabric.MRMMUNotify, "FI_MR_MMU_NOTIFY"}, {fabric.MRRMAEvent, "FI_MR_RMA_EVENT"},
		{fabric.MREndpoint, "FI_MR_ENDPOINT"}, {fabric.MRHMEM, "FI_MR_HMEM"}, {fabric.MRCollective, "FI_MR_COLLECTIVE"},
	} {
		if m&b.bit != 0 {
			names = append(names, b.name)
		}
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, ", ")
}
