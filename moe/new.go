package moe

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"moerail/combine"
	"moerail/dispatch"
	"moerail/internal/mem"
	"moerail/kernels/host"
	"moerail/moe/routing"
	"moerail/peergroup"
	"moerail/transport"
	"moerail/transport/engine"
)

// New joins this rank to a communicator. It is collective over cfg.Group: it
// returns once every rank is ready to receive, or fails on every rank.
//
// It fails with *ConfigError (every fault of cfg), *peergroup.MismatchError (the
// ranks disagree on a field), *peergroup.MissingError (some rank did not come
// within SetupDeadline), or *SetupError (some rank could not set up; it says
// which and why).
func New(ctx context.Context, cfg Config) (*Communicator, error) {
	cfg = cfg.withDefaults()
	local := cfg.checkLocal()
	if cfg.Group == nil {
		return nil, local
	}
	ctx, cancel := cfg.deadlineContext(ctx)
	defer cancel()
	if err := peergroup.Agree(ctx, cfg.Group, cfg.Name, cfg.agreed()); err != nil {
		return nil, errors.Join(local, err)
	}
	// All ranks have the same configuration now, so a fault in it is everybody's;
	// of this rank's own ones the others are told.
	rank, ranks := cfg.Group.Rank(), cfg.Group.Size()
	if _, err := routing.NewPlan(cfg.params(rank, ranks, 0)); err != nil {
		return nil, errors.Join(local, err)
	}
	if _, err := cfg.share(ctx, "config", nil, local); err != nil {
		return nil, err
	}
	// Every rank has a fabric now; an address of one means nothing to another.
	if err := peergroup.Agree(ctx, cfg.Group, cfg.Name+"/fabric", []peergroup.Param{{Name: "fabric", Value: cfg.fabricName()}}); err != nil {
		return nil, err
	}
	generation, err := peergroup.Generation(ctx, cfg.Group, cfg.Name+"/generation")
	if err != nil {
		return nil, err
	}
	plan, err := routing.NewPlan(cfg.params(rank, ranks, generation))
	if err != nil {
		return nil, err
	}
	imms := cfg.Imms
	if imms == nil {
		imms = peergroup.NewImmSpace()
	}
	numImms := plan.NumImms() + uint32(ranks) // the barrier's follow the slots'
	base, err := peergroup.AgreeImms(ctx, cfg.Group, imms, cfg.Name+"/immediates", numImms)
	if err != nil {
		return nil, err
	}
	c := &Communicator{
		cfg: cfg, plan: plan, rank: rank, ranks: ranks, engine: cfg.Engine, device: cfg.Device,
		imms: imms, base: base, direct: make([]bool, ranks), epoch: time.Now(),
	}
	c.life, c.end = context.WithCancel(context.Background())
	if err := c.setUp(ctx, numImms); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	c.watched.Add(1)
	go c.watch()
	return c, nil
}

// maxFirstRound leaves room for rounds that no run will ever use up.
const maxFirstRound = 1 << 62

// checkLocal finds what is wrong with the fields that are this rank's own.
func (c *Config) checkLocal() error {
	var f routing.Faults
	if c.Group == nil {
		f.Addf("Group is nil")
	}
	if c.Engine == nil && c.Provider == nil {
		f.Addf("neither Engine nor Provider is given")
	}
	if c.Engine == nil {
		f.Range("NICs", len(c.NICs), 1, routing.MaxNICs)
	}
	f.Range("ranks per node", c.RanksPerNode, 1, math.MaxInt32)
	if c.FirstRound > maxFirstRound {
		f.Addf("first round is %d, want at most %d", c.FirstRound, uint64(maxFirstRound))
	}
	for _, d := range []struct {
		name string
		v    time.Duration
	}{{"setup deadline", c.SetupDeadline}, {"deadline", c.Deadline}, {"first deadline", c.FirstDeadline}} {
		if d.v < time.Millisecond || d.v > 24*time.Hour {
			f.Addf("%s is %v, want 1ms to 24h", d.name, d.v)
		}
	}
	return f.Err()
}

// setUp does what each rank does for itself, tells the others how it went, and
// connects to them. A rank that fails makes all fail.
func (c *Communicator) setUp(ctx context.Context, numImms uint32) error {
	var offer []byte
	err := c.allocate(numImms)
	if err == nil {
		offer, err = c.offer()
	}
	offers, err := c.cfg.share(ctx, "memory", offer, err)
	if err != nil {
		return err
	}
	inboxes, err := c.connect(offers)
	if err == nil {
		offer = c.mapNode(inboxes)
	}
	maps, err := c.cfg.share(ctx, "paths", offer, err)
	if err != nil {
		return err
	}
	err = c.start(inboxes, maps)
	// The last exchange is the barrier before which nobody sends.
	_, err = c.cfg.share(ctx, "ready", nil, err)
	return err
}

// share is an exchange in which every rank says whether it is well; if one is
// not, all ranks get its error.
func (c *Config) share(ctx context.Context, step string, blob []byte, mine error) ([][]byte, error) {
	msg := append([]byte{0}, blob...)
	if mine != nil {
		code := CodeTransport
		if errors.Is(mine, transport.ErrRegister) {
			code = CodeRegister
		}
		msg = append([]byte{1}, string(code)+"\n"+mine.Error()...)
		msg = msg[:min(len(msg), 4096)]
	}
	all, err := c.Group.AllGather(ctx, c.Name+"/"+step, msg)
	if err != nil {
		return nil, errors.Join(mine, err)
	}
	var bad []int
	var text string
	code := CodeTransport
	for r, m := range all {
		if len(m) == 0 {
			return nil, &SetupError{Code: CodeTransport, Ranks: []int{r}, Err: fmt.Errorf("rank %d sent nothing for %s", r, step)}
		}
		if m[0] != 0 {
			bad = append(bad, r)
			if text == "" {
				for i, b := range m {
					if b == '\n' {
						code, text = Code(m[1:i]), string(m[i+1:])
						break
					}
				}
			}
		}
		all[r] = m[1:]
	}
	if len(bad) > 0 {
		se := &SetupError{Code: code, Ranks: bad, Err: fmt.Errorf("%s: %s", ranksText(bad), text)}
		if mine != nil {
			se.Err = fmt.Errorf("%s: %w", ranksText(bad), mine)
		}
		return nil, se
	}
	return all, nil
}

// allocate opens the engine if need be and makes this rank's memory and slots.
func (c *Communicator) allocate(numImms uint32) (err error) {
	if c.device == nil {
		if c.device, err = host.NewDevice(host.Config{}); err != nil {
			return err
		}
	}
	if c.engine == nil {
		if c.engine, err = openEngine(&c.cfg); err != nil {
			return err
		}
		c.ownEngine = true
	}
	if c.inbox, err = c.alloc(c.plan.Inbox.Bytes); err != nil {
		return err
	}
	if c.outbox, err = c.alloc(c.plan.Outbox.Bytes); err != nil {
		return err
	}
	if c.plan.Exact {
		if c.route, err = c.alloc(dispatch.RouteBytes(c.plan)); err != nil {
			return err
		}
	}
	p, err := newPlaced(c.plan)
	if err != nil {
		return err
	}
	c.place.Store(p)
	c.places = append(c.places, p)
	c.beFound()
	for i := range c.plan.Slots {
		s, err := newSlot(i, c.plan, c.inbox, c.outbox, c.cfg.FirstRound, c.cfg.ZeroFill)
		if s != nil {
			c.slots = append(c.slots, s)
		}
		if err != nil {
			return err
		}
		s.use(p)
		if s.stream, err = c.device.NewStream(c.bumped); err != nil {
			return err
		}
		// Flag words of peers that store here start at the round before the first.
		for q := range c.ranks {
			for parity := range 2 {
				mem.Word64(c.inbox.Host, c.plan.DirectDispatchOffset(i, parity, q)).Store(c.cfg.FirstRound)
			}
			mem.Word64(c.inbox.Host, c.plan.DirectCombineOffset(i, q)).Store(c.cfg.FirstRound)
		}
	}
	return nil
}

func (c *Communicator) alloc(n uint64) (transport.Memory, error) {
	if c.cfg.Provider != nil {
		return c.cfg.Provider.Alloc(n)
	}
	return c.engine.Alloc(n)
}

func openEngine(cfg *Config) (*engine.Engine, error) {
	var domains []transport.Domain
	var err error
	for _, name := range cfg.NICs {
		var d transport.Domain
		if d, err = cfg.Provider.Open(name, cfg.DomainConfig); err != nil {
			err = fmt.Errorf("open NIC %s: %w", name, err)
			break
		}
		domains = append(domains, d)
	}
	if err == nil {
		cpu := -1
		if len(cfg.CPUs) > 0 {
			cpu = cfg.CPUs[0]
		}
		var e *engine.Engine
		if e, err = engine.New(engine.Config{Provider: cfg.Provider, Domains: domains, CPU: cpu, Poll: cfg.Poll}); err == nil {
			return e, nil
		}
	}
	for _, d := range domains {
		err = errors.Join(err, d.Close())
	}
	return nil, err
}

// start makes the proxy and lets it run. Direct stores need both directions.
func (c *Communicator) start(inboxes []engine.Descriptor, maps [][]byte) error {
	for q, m := range maps {
		if len(m) != c.ranks {
			return fmt.Errorf("rank %d sent %d bytes of paths, want %d", q, len(m), c.ranks)
		}
		c.direct[q] = q != c.rank && m[c.rank] == 1 && maps[c.rank][q] == 1
		if n := c.mapped[q]; c.direct[q] && n != nil {
			c.neighbours = append(c.neighbours, n)
		}
	}
	for _, s := range c.slots {
		for q := range c.ranks {
			if q != c.rank && !c.direct[q] {
				s.clearPeer(c.plan, q)
			}
		}
	}
	if err := c.engine.Call(func(w *engine.Worker) { c.makeSides(w) }); err != nil {
		return err
	}
	c.proxy = newProxy(c)
	var err error
	if c.claim, err = c.engine.ClaimImms(c.base, c.plan.NumImms()+uint32(c.ranks), c.proxy); err != nil {
		return err
	}
	return c.engine.Attach(c.proxy)
}

func (c *Communicator) makeSides(w *engine.Worker) {
	var route *dispatch.Route
	if c.plan.Exact {
		route = &dispatch.Route{Group: c.groups[1], Memory: c.route.Host}
	}
	for _, s := range c.slots {
		for i := range s.trackers {
			s.trackers[i] = w.NewTracker()
		}
		s.dispatch = dispatch.New(dispatch.Config{
			Plan: c.plan, Slot: s.index, Base: c.base, Group: c.groups[0], Tracker: s.trackers[0],
			Words: s.words[0], Control: s.ctl, Direct: c.direct, Round: c.cfg.FirstRound, Route: route,
		})
		s.combine = combine.New(combine.Config{
			Plan: c.plan, Slot: s.index, Base: c.base, Group: c.groups[0], Tracker: s.trackers[1],
			Words: s.words[1], Owed: s.owed, Control: s.ctl, Direct: c.direct, Round: c.cfg.FirstRound,
		})
		if s.dispatch.Remote() == 0 {
			// No proxy will ever say that sends are done: there are none.
			s.ctl.DispatchTxDone.Store(math.MaxUint64)
			s.ctl.CombineTxDone.Store(math.MaxUint64)
		}
	}
	c.barrier = newBarrier(c.rank, c.ranks, w.NewTracker(), c.base+transport.Imm(c.plan.NumImms()+uint32(c.rank)))
}
