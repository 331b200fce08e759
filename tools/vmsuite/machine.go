package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// document runs moerail with --json and reads what it printed.
func (s *suite) document(ctx context.Context, env []string, into any, args ...string) error {
	e, err := s.run(ctx, env, "moerail", args...)
	if err != nil {
		return err
	}
	if e.code != 0 {
		return fmt.Errorf("moerail %s: exit code %d: %s", args[0], e.code, lastLines(e.stderr, 3))
	}
	if err := json.Unmarshal([]byte(e.stdout), into); err != nil {
		return fmt.Errorf("moerail %s: its output is not one JSON document: %w", args[0], err)
	}
	return nil
}

// listed is a device in doctor's document.
type listed struct {
	Name, Error string
	Ports       []struct{ State string }
}

// doctor must find the library and every device with an active port.
func (s *suite) doctor(ctx context.Context) (string, error) {
	var doc struct {
		Verbs struct {
			Built                   bool
			Library, Version, Error string
			Devices                 []listed
		}
		Findings []struct{ Name, State, Found string }
	}
	if err := s.document(ctx, nil, &doc, "doctor", "--json"); err != nil {
		return "", err
	}
	v := &doc.Verbs
	if !v.Built || v.Library == "" || v.Error != "" {
		return "", fmt.Errorf("libibverbs: built in: %v, library %q, error %q", v.Built, v.Library, v.Error)
	}
	for _, want := range s.devices {
		at := slices.IndexFunc(v.Devices, func(d listed) bool { return d.Name == want.name })
		if at < 0 {
			return "", fmt.Errorf("%s is not in doctor's list", want.name)
		}
		d := v.Devices[at]
		if d.Error != "" || len(d.Ports) != 1 || !strings.EqualFold(d.Ports[0].State, "active") {
			return "", fmt.Errorf("%s: error %q, ports %v", d.Name, d.Error, d.Ports)
		}
	}
	if len(v.Devices) != len(s.devices) {
		return "", fmt.Errorf("doctor lists %d devices, there are %d", len(v.Devices), len(s.devices))
	}
	for _, f := range doc.Findings {
		if f.State == "broken" {
			return "", fmt.Errorf("%s is broken: %s", f.Name, f.Found)
		}
	}
	return fmt.Sprintf("%s %s, %d devices active", v.Library, v.Version, len(v.Devices)), nil
}

// topo must show the devices with the addresses that they were given.
func (s *suite) topo(ctx context.Context) (string, error) {
	var doc struct {
		System struct {
			Devices []struct {
				Name       string
				Software   bool
				Interfaces []string
				CharDevice string `json:"char_device"`
				Ports      []struct {
					State     string
					LinkLayer string `json:"link_layer"`
					Rate      float64
					GIDs      []struct{ Type, Address, Interface string }
				}
			}
			Problems []struct{ Path, Text string }
		}
		Map struct {
			Spares []struct{ Device string }
		}
	}
	if err := s.document(ctx, nil, &doc, "topo", "--json"); err != nil {
		return "", err
	}
	if len(doc.System.Problems) > 0 {
		return "", fmt.Errorf("problems: %v", doc.System.Problems)
	}
	if len(doc.System.Devices) != len(s.devices) || len(doc.Map.Spares) != len(s.devices) {
		return "", fmt.Errorf("topo lists %d devices and %d ports that serve nobody, there are %d and no GPU", len(doc.System.Devices), len(doc.Map.Spares), len(s.devices))
	}
	for i, want := range s.devices {
		d := doc.System.Devices[i]
		if d.Name != want.name || !d.Software || d.CharDevice == "" || !slices.Equal(d.Interfaces, []string{want.iface}) || len(d.Ports) != 1 {
			return "", fmt.Errorf("device %d is %+v, want %s on %s", i, d, want.name, want.iface)
		}
		p := d.Ports[0]
		if p.State != "ACTIVE" || p.LinkLayer != "Ethernet" || p.Rate <= 0 {
			return "", fmt.Errorf("%s: port %+v", d.Name, p)
		}
		found := false
		for _, g := range p.GIDs {
			found = found || (g.Type == "RoCE v2" && g.Address == "::ffff:"+want.addr && g.Interface == want.iface)
		}
		if !found {
			return "", fmt.Errorf("%s: no GID of type RoCE v2 for %s among %v", d.Name, want.addr, p.GIDs)
		}
	}
	return fmt.Sprintf("%d devices with their ports, GIDs and interfaces", len(s.devices)), nil
}
