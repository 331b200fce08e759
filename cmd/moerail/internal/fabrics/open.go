package fabrics

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"moerail/transport"
	"moerail/transport/efa"
	"moerail/transport/loopback"
	"moerail/transport/shm"
	"moerail/transport/verbs"
)

// Config says for whom a fabric is opened.
type Config struct {
	Fabric       string // from Resolve
	NICs         int    // of each rank
	RanksPerNode int    // ranks that may store into each other's memory; 0 is none
	// LocalRank is which rank of its host this process is, where it is one rank.
	LocalRank int
	// Toward is rank 0's host:port, "" where all ranks are in this process.
	Toward string
	Getenv func(string) string
}

// Set is an opened fabric: the providers of the ranks of this process.
type Set struct {
	cfg      Config
	provider transport.Provider // of every rank, nil over loopback
	fabric   *loopback.Fabric
	loopback bool // its interface reaches this host only
}

// EnvGID is the index into an RDMA port's GID table that verbs uses; unset, one is
// chosen by type and scope.
const EnvGID = "MOERAIL_GID_INDEX"

// Open makes the providers. No device is opened yet, but what is known to fail
// does so here, with *Error.
func Open(ctx context.Context, cfg Config) (*Set, error) {
	s := &Set{cfg: cfg}
	provider, isLibfabric := strings.CutPrefix(cfg.Fabric, libfabricPrefix)
	var err error
	switch {
	case cfg.Fabric == "loopback":
		names := make([]string, cfg.NICs)
		for i := range names {
			names[i] = fmt.Sprintf("lo%d", i)
		}
		s.fabric, err = loopback.New(loopback.Config{NICs: names})
	case cfg.Fabric == "shm":
		s.provider, err = shm.New(shm.Config{NumNICs: cfg.NICs})
	case cfg.Fabric == "verbs":
		s.provider, err = openVerbs(cfg)
	case cfg.Fabric == "efa":
		s.provider, err = s.openLibfabric(ctx, "efa")
	case isLibfabric:
		s.provider, err = s.openLibfabric(ctx, provider)
	default:
		return nil, &Error{cfg.Fabric, "is no fabric, want " + Words, nil}
	}
	if err != nil {
		return nil, refused(cfg.Fabric, err)
	}
	if s.provider == nil {
		return s, nil
	}
	if have := s.provider.NICs(); len(have) < cfg.NICs {
		return nil, &Error{cfg.Fabric, fmt.Sprintf("has %d NICs, %d are wanted (--nics): %s", len(have), cfg.NICs, nicText(have)), nil}
	}
	return s, nil
}

func (s *Set) openLibfabric(ctx context.Context, provider string) (transport.Provider, error) {
	name, loopback, err := chooseInterface(ctx, provider, s.cfg.Toward, s.cfg.Getenv)
	if err != nil {
		return nil, err
	}
	s.loopback = loopback
	nics := s.cfg.NICs
	if provider == "efa" {
		nics = 0 // every device, of which each rank takes its own; see NICs
	}
	p, err := efa.New(efa.Config{Provider: provider, NumNICs: nics, Interface: name})
	if err != nil {
		return nil, err // not a nil *efa.Provider in an interface
	}
	if f, ok := any(p).(featured); ok && f.Features().ImmBytes < 4 {
		return nil, fmt.Errorf("%s has no immediates beside its writes, which rounds count: %s", provider, strings.Join(f.Missing(), "; "))
	}
	return p, nil
}

// featured is an efa.Provider, in a build that has it.
type featured interface {
	Features() efa.Features
	Missing() []string
}

func openVerbs(cfg Config) (transport.Provider, error) {
	c := verbs.Config{GIDIndex: -1}
	if list := cfg.Getenv(EnvNICs); list != "" {
		for name := range strings.SplitSeq(list, ",") {
			c.Devices = append(c.Devices, strings.TrimSpace(name))
		}
	}
	if index := cfg.Getenv(EnvGID); index != "" {
		n, err := strconv.Atoi(index)
		if err != nil || n < 0 || n > 255 {
			return nil, fmt.Errorf("%s is %q, want 0 to 255", EnvGID, index)
		}
		c.GIDIndex = n
	}
	p, err := verbs.New(c)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Name is the fabric as its provider calls it, which says which of libfabric's
// providers stands behind a name.
func (s *Set) Name() string {
	if s.provider != nil {
		return s.provider.Name()
	}
	return s.fabric.Name()
}

// Reach is "host" if the fabric's interface ends at this host, else "network". It
// tells ranks apart that took rank 0's address for another machine's.
func (s *Set) Reach() string {
	if s.loopback || OneHost(s.cfg.Fabric) {
		return "host"
	}
	return "network"
}

// Provider is that of a rank of this process.
func (s *Set) Provider(rank int) transport.Provider {
	if s.provider != nil {
		return s.provider
	}
	// Ranks of one node, and only those, map each other's memory.
	node := rank
	if s.cfg.RanksPerNode > 0 {
		node = rank / s.cfg.RanksPerNode
	}
	return s.fabric.Process(fmt.Sprintf("rank%d", rank), fmt.Sprintf("node%d", node))
}

// NICs are the names that a rank of this process opens. Where there are more
// devices than one rank uses, the ranks of a host take turns.
func (s *Set) NICs(rank int) []string {
	if s.cfg.Toward != "" {
		rank = s.cfg.LocalRank
	}
	var all []transport.NIC
	if s.provider != nil {
		all = s.provider.NICs()
	} else {
		all = s.fabric.NICs()
	}
	n := s.cfg.NICs
	mine := make([]int, n)
	for i := range mine {
		mine[i] = (rank*n + i) % len(all)
	}
	slices.Sort(mine) // the ranks pair NICs by place
	names := make([]string, n)
	for i, at := range mine {
		names[i] = all[at].Name
	}
	return names
}

func nicText(nics []transport.NIC) string {
	if len(nics) == 0 {
		return "none"
	}
	names := make([]string, len(nics))
	for i, n := range nics {
		names[i] = n.Name
	}
	return strings.Join(names, ", ")
}
