//go:build verbs && cgo && linux

package verbs

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"sync/atomic"

	"moerail/internal/ibv"
	"moerail/transport"
	"moerail/transport/internal/handle"
)

// owners tells the handle tables of the process apart.
var owners atomic.Uint64

const (
	maxInline   = 220 // what ConnectX takes without a larger work request
	stepSends   = 256
	stepRecvs   = 64
	stepImms    = 64
	stepWCs     = 64
	maxMessage  = 1 << 30 // of one operation; larger devices' maxima are no use
	maxRecvSize = 1 << 20
	maxRegions  = handle.MaxSlots
	softVendor  = 0xffffff
)

// random fills in what nobody else may guess or meet again.
func random() (generation uint64, qkey uint32, err error) {
	var b [12]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, 0, fmt.Errorf("random numbers: %w", err)
	}
	// A queue key with its top bit set would mean a privileged one.
	return binary.LittleEndian.Uint64(b[:]) | 1, binary.LittleEndian.Uint32(b[8:])&0x7fffffff | 1, nil
}

// randomPSN is where a queue pair's packet numbers start: a packet of a former
// life then rarely fits into the present one.
func randomPSN() (uint32, error) {
	var b [4]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, fmt.Errorf("random numbers: %w", err)
	}
	return binary.LittleEndian.Uint32(b[:]) & 0xffffff, nil
}

func openDomain(lib *ibv.Lib, n *nic, cfg Config, sizes transport.DomainConfig) (_ *domain, err error) {
	owner := owners.Add(1)
	d := &domain{
		name: n.Name, device: n.device, port: n.port, cfg: cfg, lib: lib,
		peers: handle.New[*link](owner), remotes: handle.New[*remote](owner), regions: handle.New[*region](owner),
		templates: handle.New[*template](owner),
		links:     map[[addressBytes]byte]*link{}, byQP: map[uint32]*rcQP{}, ended: make(chan struct{}),
	}
	defer func() {
		if err != nil {
			if more := d.release(); more != nil {
				err = fmt.Errorf("%w; then %w", err, more)
			}
		}
	}()
	if d.dev, err = lib.OpenDevice(n.device); err != nil {
		return nil, err
	}
	port, err := d.readPort()
	if err != nil {
		return nil, err
	}
	if d.pd, err = d.dev.AllocPD(); err != nil {
		return nil, err
	}
	if err := d.makeQueues(sizes); err != nil {
		return nil, err
	}
	if err := d.mail.open(d, port); err != nil {
		return nil, err
	}
	if err := d.ops.open(d, sizes.MaxSend); err != nil {
		return nil, err
	}
	d.recvs.open(sizes.MaxRecv)
	if err := d.makeIdentity(port); err != nil {
		return nil, err
	}
	d.setLimits(port, sizes)
	// The first immediates may come as soon as somebody has the address.
	for d.immsOut < d.cfg.ImmDepth {
		before := d.immsOut
		d.refill()
		d.step(0)
		if d.fatal != nil {
			return nil, d.fatal
		}
		if d.immsOut == before {
			return nil, fmt.Errorf("ibv_post_srq_recv: the queue for immediates took %d of %d receives", before, d.cfg.ImmDepth)
		}
	}
	return d, nil
}

// readPort learns what device and port can do.
func (d *domain) readPort() (ibv.PortAttr, error) {
	var err error
	if d.attr, err = d.dev.Attr(); err != nil {
		return ibv.PortAttr{}, err
	}
	port, err := d.dev.Port(d.port)
	if err != nil {
		return port, err
	}
	table, err := d.dev.GIDs()
	if err != nil {
		return port, err
	}
	if d.gid, err = chooseGID(table, d.port, port.LinkLayer == ibv.LinkEthernet, d.cfg.GIDIndex); err != nil {
		return port, err
	}
	if port.State != ibv.PortActive {
		d.down = d.portDown("it is not active")
	}
	if port.MTU < 1 || port.MTU > 5 {
		return port, fmt.Errorf("the port reports MTU code %d, want 1 to 5", port.MTU)
	}
	if want := mtuCode(d.cfg.MTU); want != 0 {
		if want > port.MTU {
			return port, fmt.Errorf("an MTU of %d bytes is asked for, the port has %d", d.cfg.MTU, 128<<port.MTU)
		}
		port.MTU = want
	}
	d.maxMsg = min(port.MaxMessage, maxMessage)
	if d.maxMsg < 4096 {
		return port, fmt.Errorf("the port reports messages of at most %d bytes", port.MaxMessage)
	}
	d.access = ibv.RemoteWrite
	if d.attr.MaxQPReads > 0 && d.attr.MaxInitReads > 0 {
		d.access |= ibv.RemoteRead
		if d.attr.Atomic {
			d.access |= ibv.RemoteAtomic
		}
	}
	if d.soft = d.attr.VendorID == softVendor; d.soft {
		d.cfg.Retries = min(d.cfg.Retries, 6) // it reads 7 as for ever
	}
	d.relaxed = !d.cfg.StrictOrdering && d.lib.HasOptionalAccess()
	return port, nil
}

// makeQueues makes the completion queue large enough that it can not overflow,
// whatever completes at once: every receive that is posted, every datagram, and
// maxIn sends.
func (d *domain) makeQueues(sizes transport.DomainConfig) error {
	var err error
	if d.attr.MaxSRQWR > 0 {
		d.cfg.ImmDepth = min(d.cfg.ImmDepth, d.attr.MaxSRQWR)
		if sizes.MaxRecv > d.attr.MaxSRQWR {
			return fmt.Errorf("MaxRecv is %d, the device's receive queues hold %d", sizes.MaxRecv, d.attr.MaxSRQWR)
		}
	}
	if d.attr.MaxQPWR > 0 {
		d.cfg.SendDepth = min(d.cfg.SendDepth, d.attr.MaxQPWR)
	}
	others := d.cfg.ImmDepth + sizes.MaxRecv + mailRecvs + mailSends
	d.maxIn = 4 * max(sizes.MaxSend, stepSends)
	if d.attr.MaxCQE > 0 {
		d.maxIn = min(d.maxIn, d.attr.MaxCQE-others)
	}
	if d.maxIn < 16 {
		return fmt.Errorf("the device's completion queues hold %d entries; %d are for receives (ImmDepth %d, MaxRecv %d), which leaves %d for sends",
			d.attr.MaxCQE, others, d.cfg.ImmDepth, sizes.MaxRecv, d.maxIn)
	}
	if d.cq, err = d.dev.CreateCQ(d.maxIn + others); err != nil {
		return err
	}
	if d.imms, err = d.pd.CreateSRQ(d.cfg.ImmDepth); err != nil {
		return err
	}
	if d.msgs, err = d.pd.CreateSRQ(sizes.MaxRecv); err != nil {
		return err
	}
	d.queue, err = d.lib.NewQueue(d.cq, d.imms, d.msgs, ibv.QueueSizes{Sends: stepSends, Recvs: stepRecvs, Imms: stepImms, Completions: stepWCs})
	return err
}

func (d *domain) makeIdentity(port ibv.PortAttr) error {
	generation, _, err := random()
	if err != nil {
		return err
	}
	d.id = identity{
		generation: generation, gid: d.gid.GID, qpn: d.mail.qp.Number, qkey: d.mail.qkey, pid: uint32(os.Getpid()), lid: port.LID,
		ethernet: port.LinkLayer == ibv.LinkEthernet, mtu: uint8(port.MTU), reads: uint8(min(d.attr.MaxQPReads, 255)),
	}
	d.addr = d.id.encode()
	return nil
}

func (d *domain) setLimits(port ibv.PortAttr, sizes transport.DomainConfig) {
	piece := d.pieceBytes()
	if piece >= 1<<62 {
		piece = 0
	}
	d.limits = transport.Limits{
		MaxSend: sizes.MaxSend, MaxRecv: sizes.MaxRecv, MaxInline: maxInline, MaxMessage: maxMessage,
		MaxRecvSize: min(d.maxMsg, maxRecvSize), MaxRegion: piece, MaxRegions: maxRegions, ImmBytes: 4,
		Read: d.access&ibv.RemoteRead != 0, Atomic: d.access&ibv.RemoteAtomic != 0, LinkBytesPerSecond: linkRate(port),
	}
}

// linkRate is the nominal rate of a port in bytes a second, 0 if unknown.
func linkRate(p ibv.PortAttr) uint64 {
	lanes := map[int]uint64{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[p.Width]
	megabits := map[int]uint64{1: 2500, 2: 5000, 4: 10000, 8: 10000, 16: 14062, 32: 25000, 64: 50000, 128: 100000}[p.Speed]
	return lanes * megabits * 1e6 / 8
}

// pieceBytes is how much one registration covers.
func (d *domain) pieceBytes() uint64 {
	piece := d.attr.MaxMRSize / 4096 * 4096
	if d.attr.MaxMRSize == 0 {
		piece = 1 << 63
	}
	if d.cfg.MaxRegion > 0 {
		piece = min(piece, d.cfg.MaxRegion)
	}
	return max(piece, 4096)
}
