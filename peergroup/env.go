package peergroup

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// launcher is how one family of launchers tells a process its place.
type launcher struct {
	name      string
	rank      string
	size      string
	localRank string
}

// launchers, the first match wins. torch-style variables are set on purpose, so
// they lead. Slurm comes last: a batch script has its variables too, and hands
// them on to every process that mpirun starts in it.
var launchers = []launcher{
	{"torch", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
	{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
	{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
}

// Variables of our own. EnvAddr, host:port of rank 0, goes before MASTER_ADDR
// and MASTER_PORT. The secret stands in EnvSecret itself, or in the file that
// EnvSecretFile names; line ends at its end are not part of it.
const (
	EnvAddr       = "MOERAIL_ADDR"
	EnvSecret     = "MOERAIL_SECRET"
	EnvSecretFile = "MOERAIL_SECRET_FILE"
)

// Ports that Slurm jobs get if none is set: below the range from which systems
// take ports for outgoing connections, and another for each job step.
const (
	slurmFirstPort = 20000
	slurmPorts     = 12000
)

// FromEnv reads a configuration from what a launcher sets, through getenv
// (os.Getenv, say; "" means not set):
//
//	torch-style  RANK WORLD_SIZE LOCAL_RANK              MASTER_ADDR MASTER_PORT
//	Open MPI     OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK}  MASTER_ADDR MASTER_PORT
//	Slurm        SLURM_PROCID SLURM_NTASKS SLURM_LOCALID MASTER_ADDR MASTER_PORT, or else the
//	             first host of SLURM_STEP_NODELIST, and a port made from SLURM_JOB_ID and SLURM_STEP_ID
//
// MOERAIL_ADDR=host:port replaces the address of all of them. Under Slurm's
// default distribution task 0 runs on the first host of the list; with another
// one, set the address.
//
// MASTER_ADDR must name rank 0's host as all hosts see it. Beware of `hostname
// -i` where /etc/hosts maps the host's own name to 127.0.1.1: other hosts would
// dial themselves. TCPConfig.Addr says where rank 0 listens.
//
// It fails with *ConfigError, which holds all faults at once and never the
// secret.
func FromEnv(getenv func(string) string) (TCPConfig, error) {
	var e ConfigError
	cfg := TCPConfig{LocalRank: -1}
	l := findLauncher(getenv)
	if l == nil {
		e.add("RANK", "not set", "RANK and WORLD_SIZE, OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE, or SLURM_PROCID and SLURM_NTASKS")
	} else {
		size, sizeOK := envInt(&e, getenv, l.size, 1, MaxRanks)
		most := MaxRanks - 1
		if sizeOK {
			most = size - 1
		}
		cfg.Size = size
		cfg.Rank, _ = envInt(&e, getenv, l.rank, 0, most)
		if getenv(l.localRank) != "" {
			cfg.LocalRank, _ = envInt(&e, getenv, l.localRank, 0, most)
		}
	}
	cfg.Addr = envAddr(&e, getenv, l != nil && l.name == "Slurm")
	cfg.Secret = envSecret(&e, getenv)
	if err := e.orNil(); err != nil {
		return TCPConfig{}, err
	}
	return cfg, nil
}

func findLauncher(getenv func(string) string) *launcher {
	for i, l := range launchers {
		if getenv(l.rank) != "" || getenv(l.size) != "" {
			return &launchers[i]
		}
	}
	return nil
}

// envInt reads a decimal number of lo to hi.
func envInt(e *ConfigError, getenv func(string) string, name string, lo, hi int) (int, bool) {
	text := getenv(name)
	want := fmt.Sprintf("a number of %d to %d", lo, hi)
	if text == "" {
		e.add(name, "not set", want)
		return 0, false
	}
	v, err := strconv.Atoi(text)
	if err != nil || v < lo || v > hi {
		e.add(name, strconv.Quote(text), want)
		return 0, false
	}
	return v, true
}

// envAddr finds host:port of rank 0.
func envAddr(e *ConfigError, getenv func(string) string, slurm bool) string {
	if addr := getenv(EnvAddr); addr != "" {
		host, why := checkAddr(addr, false)
		if why == "" && host == "" {
			why = "a host before the port"
		}
		if why != "" {
			e.add(EnvAddr, strconv.Quote(addr), why)
		}
		return addr
	}
	host := getenv("MASTER_ADDR")
	switch {
	case host != "":
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
		if why := checkHost(host); why != "" {
			e.add("MASTER_ADDR", strconv.Quote(getenv("MASTER_ADDR")), why)
		}
	case slurm:
		list := getenv("SLURM_STEP_NODELIST")
		if list == "" {
			e.add("SLURM_STEP_NODELIST", "not set", "a list of hosts, or MASTER_ADDR or "+EnvAddr+" instead")
			break
		}
		var why string
		if host, why = firstNode(list); why != "" {
			e.add("SLURM_STEP_NODELIST", strconv.Quote(list), why)
		}
	default:
		e.add("MASTER_ADDR", "not set", "the host of rank 0, or "+EnvAddr+" instead")
	}
	var port int
	if slurm && getenv("MASTER_PORT") == "" {
		job, jobOK := envInt(e, getenv, "SLURM_JOB_ID", 0, math.MaxInt)
		step, stepOK := 0, true
		if getenv("SLURM_STEP_ID") != "" {
			step, stepOK = envInt(e, getenv, "SLURM_STEP_ID", 0, math.MaxInt)
		}
		if jobOK && stepOK {
			port = slurmFirstPort + (job%slurmPorts*31+step%slurmPorts)%slurmPorts
		}
	} else {
		port, _ = envInt(e, getenv, "MASTER_PORT", 1, 65535)
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// checkHost says what is wrong with a host name or IP address.
func checkHost(host string) (why string) {
	const want = "a host name or an IP address"
	if strings.Contains(host, ":") {
		if _, err := netip.ParseAddr(host); err != nil {
			return want + " without a port"
		}
		return ""
	}
	if host == "" || len(host) > 253 {
		return want
	}
	for _, c := range []byte(host) {
		if !isHostByte(c) {
			return want
		}
	}
	return ""
}

func isHostByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.' || c == '_'
}

// firstNode is the first host of a Slurm host list such as
// "gpu[003-008,011],login": brackets hold ranges of numbers, and a name may have
// several.
func firstNode(list string) (host, why string) {
	const want = "a Slurm host list such as node[01-04,7],gpu1"
	var b strings.Builder
	for i := 0; i < len(list) && list[i] != ','; i++ {
		if list[i] != '[' {
			b.WriteByte(list[i])
			continue
		}
		end := strings.IndexByte(list[i:], ']')
		if end < 0 {
			return "", want
		}
		number, _, _ := strings.Cut(list[i+1:i+end], ",")
		number, _, _ = strings.Cut(number, "-")
		if _, err := strconv.ParseUint(number, 10, 64); err != nil {
			return "", want
		}
		b.WriteString(number)
		i += end
	}
	if why := checkHost(b.String()); why != "" {
		return "", want
	}
	return b.String(), ""
}

// envSecret reads the secret. Its value goes into no fault.
func envSecret(e *ConfigError, getenv func(string) string) []byte {
	const notShown = "set (not shown)"
	want := fmt.Sprintf("1 to %d bytes, the same on every rank", MaxSecretBytes)
	secret, path := getenv(EnvSecret), getenv(EnvSecretFile)
	switch {
	case secret != "" && path != "":
		e.add(EnvSecret, notShown, "only one of "+EnvSecret+" and "+EnvSecretFile)
	case secret != "":
		if len(secret) > MaxSecretBytes {
			e.add(EnvSecret, fmt.Sprintf("%d bytes long", len(secret)), want)
			return nil
		}
		return []byte(secret)
	case path != "":
		b, err := readSecret(path)
		if err != nil {
			e.add(EnvSecretFile, strconv.Quote(path), fmt.Sprintf("a readable file of %s: %v", want, err))
		}
		return b
	default:
		e.add(EnvSecret, "not set", want+", or "+EnvSecretFile+" instead")
	}
	return nil
}

func readSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.IsDir() {
		return nil, fmt.Errorf("not a file")
	}
	const lineEnd = 2
	b, err := io.ReadAll(io.LimitReader(f, MaxSecretBytes+lineEnd+1))
	if err != nil {
		return nil, err
	}
	b = bytes.TrimRight(b, "\r\n")
	if len(b) < 1 || len(b) > MaxSecretBytes {
		return nil, fmt.Errorf("%d bytes or more", len(b))
	}
	return b, nil
}
