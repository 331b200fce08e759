package topo

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the expected maps anew")

// The expected map of each machine is a file that was checked by hand.
func TestMaps(t *testing.T) {
	for name, f := range map[string]func() fake{
		"dgx":            dgx,
		"two-sockets":    twoSockets,
		"p5":             func() fake { return nccl(t, "aws_p5_48xlarge.xml") },
		"oci-h100":       func() fake { return nccl(t, "oci_bm_gpu_h100_8.xml") },
		"azure-h100":     func() fake { return azure(t) },
		"p5en":           func() fake { return dense(8, 2) },
		"p6":             func() fake { return dense(4, 4) },
		"rxe":            func() fake { return listing(t, "rxe.sysfs") },
		"xeon-qib":       func() fake { return listing(t, "xeon_qib.sysfs") },
		"dgx-port-down":  func() fake { return portDown("mlx5_9") },
		"dgx-all-down":   func() fake { return portDown("mlx5_") },
		"more-gpus":      func() fake { return shared(4, 2) },
		"uneven":         func() fake { return shared(2, 5) },
		"one-socket-nic": oneSocket,
	} {
		t.Run(name, func(t *testing.T) {
			a, err := mustRead(t, f()).Assign(Options{})
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".map")
			got := mapText(a)
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("the map is\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// azure has GPUs and NICs behind bridges that its file makes up; the NICs have no
// names there.
func azure(t testing.TB) fake {
	f := nccl(t, "azure_nd_h100_v5.xml")
	n := 0
	for _, p := range sortedPaths(f) {
		if dir, ok := strings.CutSuffix(p, "/class"); ok && f[p] == "0x020700" {
			f[dir+"/vendor"], f[dir+"/device"] = "0x15b3", "0x101e"
			f.rdma(strings.TrimPrefix(dir, "devices/"), nicSpec{name: fmt.Sprintf("mlx5_ib%d", n), state: "4: ACTIVE", layer: "InfiniBand", rate: "400 Gb/sec (4X NDR)"})
			n++
		}
	}
	return f
}

func sortedPaths(f fake) []string {
	var out []string
	for p := range f {
		out = append(out, p)
	}
	slices.Sort(out)
	return out
}

// dense has, under each switch, one GPU and several EFA devices.
func dense(gpus, each int) fake {
	f := fake{}
	f.cpus(0, 0, 7, 16)
	f.cpus(1, 8, 15, 16)
	for i := range gpus {
		bus := 0x10 * (i + 1)
		up := fmt.Sprintf("pci0000:%02x/0000:%02x:00.0", bus, bus)
		f.bridge(up)
		f.gpu(fmt.Sprintf("%s/0000:%02x:00.0", up, bus+1), i*2/gpus)
		for n := range each {
			f.nic(fmt.Sprintf("%s/0000:%02x:00.0", up, bus+2+n), i*2/gpus, nicSpec{name: fmt.Sprintf("rdmap%ds0", bus+2+n),
				vendor: "0x1d0f", device: "0xefa3", layer: "Unspecified", rate: "200 Gb/sec (4X HDR)"})
		}
	}
	return f
}

// shared has one switch with GPUs and NICs.
func shared(gpus, nics int) fake {
	f := fake{}
	f.cpus(0, 0, 8, 9)
	f.bridge("pci0000:10/0000:10:00.0")
	for i := range gpus {
		f.gpu(fmt.Sprintf("pci0000:10/0000:10:00.0/0000:11:%02x.0", i), 0)
	}
	for i := range nics {
		f.nic(fmt.Sprintf("pci0000:10/0000:10:00.0/0000:12:%02x.0", i), 0, nicSpec{name: fmt.Sprintf("mlx5_%d", i)})
	}
	return f
}

// oneSocket has GPUs on both sockets and NICs on the first.
func oneSocket() fake {
	f := twoSockets().without("0000:c1:00").without("mlx5_2").without("mlx5_3")
	return f
}

// portDown is the DGX with ports down.
func portDown(names string) fake {
	f := dgx()
	for p := range f {
		if strings.Contains(p, "/infiniband/"+names) && strings.HasSuffix(p, "/ports/1/state") {
			f[p] = "1: DOWN"
		}
	}
	return f
}

// What a machine is does not depend on the order in which the kernel lists it,
// nor on the order or choice of the GPUs that a process sees.
func TestVisibleGPUsKeepTheirPorts(t *testing.T) {
	s := mustRead(t, dgx())
	all, err := s.Assign(Options{})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		var some []PCIAddress
		for _, i := range rng.Perm(8)[:1+rng.IntN(8)] {
			some = append(some, s.GPUs[i].PCI)
		}
		a, err := s.Assign(Options{GPUs: some})
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Services) != len(some) {
			t.Fatalf("%d GPUs asked for, %d served", len(some), len(a.Services))
		}
		for _, got := range a.Services {
			i := slices.IndexFunc(all.Services, func(s Service) bool { return s.GPU == got.GPU })
			if !reflect.DeepEqual(got, all.Services[i]) {
				t.Errorf("with %v visible: %+v, with all: %+v", some, got, all.Services[i])
			}
		}
	}
}

func TestNamedPorts(t *testing.T) {
	s := mustRead(t, dgx())
	first := s.GPUs[0].PCI
	a, err := s.Assign(Options{Ports: []string{"mlx5_0", "mlx5_1:1"}, GPUs: []PCIAddress{first}})
	if err != nil {
		t.Fatal(err)
	}
	if got := ports(a.Services[0]); got != "mlx5_0:1 mlx5_1:1" || a.Kind != "" {
		t.Errorf("ports %q, kind %q", got, a.Kind)
	}
	if len(a.Spares) != 10 || a.Spares[0].Reason != "not among the ports asked for" {
		t.Errorf("spares %+v", a.Spares)
	}
	_, err = s.Assign(Options{Ports: []string{"mlx5_0:2", "mlx5_3"}, GPUs: []PCIAddress{"0000:ff:00.0"}})
	if err == nil || !strings.Contains(err.Error(), `"mlx5_0:2"`) || strings.Contains(err.Error(), "mlx5_3") || !strings.Contains(err.Error(), "0000:ff:00.0") {
		t.Errorf("unknown names: %v", err)
	}
}

// On any machine: every GPU and every port is in the answer once, ports that are
// not shared have one GPU, no port is idle that is nearer to a GPU than that GPU's
// own, unless it was left over from an even split.
func TestNothingVanishes(t *testing.T) {
	for seed := range uint64(20000) {
		s := randomSystem(rand.New(rand.NewPCG(seed, 9)))
		a, err := s.Assign(Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := audit(s, a); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, mapText(a))
		}
	}
}

// randomSystem hangs GPUs and NICs anywhere.
func randomSystem(rng *rand.Rand) *System {
	s := &System{}
	nodes := 1 + rng.IntN(2)
	for n := range nodes {
		s.Nodes = append(s.Nodes, Node{Number: n, CPUs: []int{2 * n, 2*n + 1}, Cores: []int{2 * n, 2*n + 1}})
	}
	places := [][]string{}
	bus := 0
	for h := range 1 + rng.IntN(4) {
		at := []string{fmt.Sprintf("pci0000:%02x", 0x40*h)}
		places = append(places, at)
		for range rng.IntN(4) {
			if rng.IntN(2) == 0 {
				at = at[:1] // another root port
			}
			at = append(slices.Clone(at), fmt.Sprintf("0000:%02x:00.0", bus))
			bus++
			places = append(places, at)
		}
	}
	location := func() Location {
		bus++
		return Location{PCI: PCIAddress(fmt.Sprintf("0000:%02x:00.0", bus)), Above: places[rng.IntN(len(places))], NUMA: rng.IntN(nodes+1) - 1}
	}
	for range rng.IntN(7) {
		s.GPUs = append(s.GPUs, GPU{Location: location()})
	}
	for i := range rng.IntN(9) {
		d := Device{Location: location(), Name: fmt.Sprintf("mlx5_%d", i), ID: []string{"15b3:1021", "15b3:101d"}[rng.IntN(6)/5]}
		for n := range 1 + rng.IntN(2) {
			d.Ports = append(d.Ports, Port{Number: n + 1, State: []string{"ACTIVE", "DOWN"}[rng.IntN(6)/5], Rate: 1e9})
		}
		s.Devices = append(s.Devices, d)
	}
	return s
}

func audit(s *System, a *Assignment) error {
	if len(a.Services) != len(s.GPUs) {
		return fmt.Errorf("%d GPUs, %d in the map", len(s.GPUs), len(a.Services))
	}
	users := map[string]int{}
	spare := map[string]string{}
	for _, sp := range a.Spares {
		k := fmt.Sprintf("%s:%d", sp.Device, sp.Port)
		if spare[k] != "" || sp.Reason == "" {
			return fmt.Errorf("spare %+v: without a reason, or twice", sp)
		}
		spare[k] = sp.Reason
	}
	for i, svc := range a.Services {
		if svc.GPU != s.GPUs[i].PCI {
			return fmt.Errorf("service %d is for %s, the GPU is %s", i, svc.GPU, s.GPUs[i].PCI)
		}
		if len(svc.Routes) == 0 && svc.Reason == "" {
			return fmt.Errorf("%s: no route and no reason", svc.GPU)
		}
		for _, r := range svc.Routes {
			users[fmt.Sprintf("%s:%d", r.Device, r.Port)]++
		}
	}
	usable := 0
	for _, d := range s.Devices {
		for _, p := range d.Ports {
			k := fmt.Sprintf("%s:%d", d.Name, p.Number)
			if (users[k] > 0) == (spare[k] != "") {
				return fmt.Errorf("%s: %d users, spare %q", k, users[k], spare[k])
			}
			if users[k] > 0 && !p.Active() {
				return fmt.Errorf("%s is in use and %s", k, p.State)
			}
			if users[k] > 0 || strings.Contains(spare[k], "left over") || strings.Contains(spare[k], "nearer") {
				usable++
			}
			for i, svc := range a.Services {
				if !strings.Contains(spare[k], "nearer") || len(svc.Routes) == 0 {
					continue
				}
				if d, _ := Between(s.GPUs[i].Location, d.Location); d < svc.Routes[0].Distance {
					return fmt.Errorf("%s is idle and nearer to %s than %s", k, svc.GPU, svc.Routes[0].Device)
				}
			}
		}
	}
	for _, svc := range a.Services {
		if len(svc.Routes) == 0 && usable > 0 {
			return fmt.Errorf("%s has no port, %d are usable", svc.GPU, usable)
		}
		for _, r := range svc.Routes {
			if r.Shared != (users[fmt.Sprintf("%s:%d", r.Device, r.Port)] > 1) {
				return fmt.Errorf("%s: %+v, which has %d users", svc.GPU, r, users[fmt.Sprintf("%s:%d", r.Device, r.Port)])
			}
		}
	}
	return nil
}

func randomMachine(rng *rand.Rand) fake {
	f := fake{"devices/system/cpu/online": "0-7"}
	nodes := 1 + rng.IntN(2)
	for n := range nodes {
		f[fmt.Sprintf("devices/system/node/node%d/cpulist", n)] = fmt.Sprintf("%d-%d", n*4, n*4+3)
	}
	bus := 1
	var dirs []string
	for h := range 1 + rng.IntN(4) {
		dirs = append(dirs, fmt.Sprintf("pci0000:%02x", h*0x40))
		for range rng.IntN(4) {
			under := dirs[len(dirs)-1-rng.IntN(min(2, len(dirs)))]
			dir := fmt.Sprintf("%s/0000:%02x:00.0", under, bus)
			bus++
			f.bridge(dir)
			dirs = append(dirs, dir)
		}
	}
	numa := func() int { return rng.IntN(nodes+1) - 1 }
	for range rng.IntN(7) {
		f.gpu(fmt.Sprintf("%s/0000:%02x:00.0", dirs[rng.IntN(len(dirs))], bus), numa())
		bus++
	}
	for i := range rng.IntN(9) {
		s := nicSpec{name: fmt.Sprintf("mlx5_%d", i)}
		if rng.IntN(6) == 0 {
			s.state = "1: DOWN"
		}
		if rng.IntN(6) == 0 {
			s.device = "0x101d"
		}
		f.nic(fmt.Sprintf("%s/0000:%02x:00.0", dirs[rng.IntN(len(dirs))], bus), numa(), s)
		bus++
	}
	return f
}
