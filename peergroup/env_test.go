package peergroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const envTestSecret = "correct horse battery staple"

func TestFromEnv(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(envTestSecret+"\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		env                   map[string]string
		rank, size, localRank int
		addr                  string
	}{
		"torch": {map[string]string{"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "head.example", "MASTER_PORT": "29500", EnvSecret: envTestSecret},
			3, 8, 1, "head.example:29500"},
		"torch under Slurm and mpirun": {map[string]string{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1", "SLURM_PROCID": "5", "SLURM_NTASKS": "9", "OMPI_COMM_WORLD_RANK": "7", "OMPI_COMM_WORLD_SIZE": "8", EnvSecret: envTestSecret},
			1, 2, -1, "h:1"},
		"mpirun in a Slurm batch script": {map[string]string{"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "MASTER_ADDR": "::1", "MASTER_PORT": "65535", EnvSecretFile: file},
			2, 4, 0, "[::1]:65535"},
		"bracketed IPv6": {map[string]string{"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "[fe80::1%eth0]", "MASTER_PORT": "7", EnvSecret: envTestSecret},
			0, 1, -1, "[fe80::1%eth0]:7"},
		"Slurm": {map[string]string{"SLURM_PROCID": "0", "SLURM_NTASKS": "16", "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "gpu[003-008,011],login", "SLURM_JOB_ID": "12001", "SLURM_STEP_ID": "2", EnvSecret: envTestSecret},
			0, 16, 0, "gpu003:20033"},
		"Slurm with our address": {map[string]string{"SLURM_PROCID": "15", "SLURM_NTASKS": "16", EnvAddr: "[2001:db8::1]:4000", EnvSecret: envTestSecret},
			15, 16, -1, "[2001:db8::1]:4000"},
	} {
		cfg, err := FromEnv(func(k string) string { return c.env[k] })
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if cfg.Rank != c.rank || cfg.Size != c.size || cfg.LocalRank != c.localRank || cfg.Addr != c.addr || string(cfg.Secret) != envTestSecret {
			t.Errorf("%s: got %v", name, cfg)
		}
		if err := cfg.validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, text := range []string{fmt.Sprint(cfg), fmt.Sprintf("%+v", cfg), fmt.Sprintf("%#v", cfg), fmt.Sprintf("%v", &cfg)} {
			if strings.Contains(text, envTestSecret) || strings.Contains(text, fmt.Sprint([]byte(envTestSecret)[:4])) {
				t.Errorf("%s: the secret is printed", name)
			}
		}
	}
}

func TestFromEnvFaults(t *testing.T) {
	dir := t.TempDir()
	long := filepath.Join(dir, "long")
	if err := os.WriteFile(long, make([]byte, MaxSecretBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		env    map[string]string
		faults []string
	}{
		"nothing set": {nil, []string{"RANK", "MASTER_ADDR", "MASTER_PORT", EnvSecret}},
		"all wrong": {map[string]string{"RANK": "8", "WORLD_SIZE": "8", "LOCAL_RANK": "x", "MASTER_ADDR": "a b", "MASTER_PORT": "65536", EnvSecret: envTestSecret, EnvSecretFile: "/f"},
			[]string{"RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", EnvSecret}},
		"size missing":     {map[string]string{"RANK": "-1", masterAddr: "h", "MASTER_PORT": "1", EnvSecret: "s"}, []string{"WORLD_SIZE", "RANK"}},
		"size zero":        {map[string]string{"RANK": "0", "WORLD_SIZE": "0", EnvAddr: "h:1", EnvSecret: "s"}, []string{"WORLD_SIZE"}},
		"size too large":   {map[string]string{"RANK": "0", "WORLD_SIZE": "99999999999999999999", EnvAddr: "h:1", EnvSecret: "s"}, []string{"WORLD_SIZE"}},
		"address no port":  {map[string]string{"RANK": "0", "WORLD_SIZE": "1", EnvAddr: "::1", EnvSecret: "s"}, []string{EnvAddr}},
		"address no host":  {map[string]string{"RANK": "0", "WORLD_SIZE": "1", EnvAddr: ":80", EnvSecret: "s"}, []string{EnvAddr}},
		"address port 0":   {map[string]string{"RANK": "0", "WORLD_SIZE": "1", EnvAddr: "h:0", EnvSecret: "s"}, []string{EnvAddr}},
		"host with port":   {map[string]string{"RANK": "0", "WORLD_SIZE": "1", masterAddr: "h:1", "MASTER_PORT": "1", EnvSecret: "s"}, []string{masterAddr}},
		"file missing":     {map[string]string{"RANK": "0", "WORLD_SIZE": "1", EnvAddr: "h:1", EnvSecretFile: filepath.Join(dir, "none")}, []string{EnvSecretFile}},
		"file a directory": {map[string]string{"RANK": "0", "WORLD_SIZE": "1", EnvAddr: "h:1", EnvSecretFile: dir}, []string{EnvSecretFile}},
		"file too long":    {map[string]string{"RANK": "0", "WORLD_SIZE": "1", EnvAddr: "h:1", EnvSecretFile: long}, []string{EnvSecretFile}},
		"file empty":       {map[string]string{"RANK": "0", "WORLD_SIZE": "1", EnvAddr: "h:1", EnvSecretFile: os.DevNull}, []string{EnvSecretFile}},
		"secret too long":  {map[string]string{"RANK": "0", "WORLD_SIZE": "1", EnvAddr: "h:1", EnvSecret: strings.Repeat("s", MaxSecretBytes+1)}, []string{EnvSecret}},
		"Slurm no hosts":   {map[string]string{"SLURM_PROCID": "0", "SLURM_NTASKS": "1", EnvSecret: "s"}, []string{"SLURM_STEP_NODELIST", "SLURM_JOB_ID"}},
		"Slurm bad hosts":  {map[string]string{"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NODELIST": "a[1-2", "SLURM_JOB_ID": "1", EnvSecret: "s"}, []string{"SLURM_STEP_NODELIST"}},
	} {
		_, err := FromEnv(func(k string) string { return c.env[k] })
		var faults *ConfigError
		if !errors.As(err, &faults) {
			t.Errorf("%s: %v, want a *ConfigError", name, err)
			continue
		}
		var names []string
		for _, f := range faults.Faults {
			names = append(names, f.Name)
			if v := c.env[f.Name]; !strings.HasPrefix(f.Name, EnvSecret) && v != "" && !strings.Contains(err.Error(), v) {
				t.Errorf("%s: %q does not show %s=%s", name, err, f.Name, v)
			}
			if f.Want == "" {
				t.Errorf("%s: %s: nothing said about what is allowed", name, f.Name)
			}
		}
		if fmt.Sprint(names) != fmt.Sprint(c.faults) {
			t.Errorf("%s: faults %v, want %v", name, names, c.faults)
		}
		if strings.Contains(err.Error(), envTestSecret) {
			t.Errorf("%s: the secret is in %q", name, err)
		}
	}
}

const masterAddr = "MASTER_ADDR"

func TestFirstNode(t *testing.T) {
	for list, want := range map[string]string{
		"node1":                  "node1",
		"node1,node2":            "node1",
		"gpu[003-008,011],x":     "gpu003",
		"r[2,5]-n[07-09]":        "r2-n07",
		"a[1-2]b.example,c":      "a1b.example",
		"[10-12]":                "10",
		"":                       "",
		",a":                     "",
		"a[":                     "",
		"a[]":                    "",
		"a]":                     "",
		"a[b-c]":                 "",
		"a[1-2][":                "",
		"a b":                    "",
		strings.Repeat("a", 300): "",
	} {
		got, why := firstNode(list)
		if got != want || (why == "") != (want != "") {
			t.Errorf("firstNode(%q) = %q, %q; want %q", list, got, why, want)
		}
	}
}

func FuzzFirstNode(f *testing.F) {
	f.Add("gpu[003-008,011],login")
	f.Add("a[1-2][3]x,b")
	f.Fuzz(func(t *testing.T, list string) {
		host, why := firstNode(list)
		if (host == "") == (why == "") {
			t.Fatalf("%q: host %q and fault %q", list, host, why)
		}
		if why == "" && checkHost(host) != "" {
			t.Fatalf("%q gave %q, which is no host", list, host)
		}
	})
}
