package casefile

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// faultPlan reads the faults object.
func (w *walker) faultPlan() Faults {
	var f Faults
	w.object(func(key string) bool {
		switch key {
		case "seed":
			f.Seed = w.seed()
		case "reorder":
			f.Reorder = w.boolean()
		case "delay_us":
			f.DelayMin, f.DelayMax = w.delay()
		case "pause":
			w.list(false, func(int) { f.Pause = append(f.Pause, w.pause()) })
		case "kill":
			w.list(false, func(int) {
				p := w.event("rank", "round", "phase")
				f.Kill = append(f.Kill, Kill{p.rank, p.round, p.phase})
			})
		case "absent":
			w.list(false, func(int) { f.Absent = append(f.Absent, w.rank()) })
		case "partition":
			w.list(false, func(int) {
				group := []int{}
				w.list(false, func(int) { group = append(group, w.rank()) })
				f.Partition = append(f.Partition, group)
			})
		case "fail_register":
			w.list(false, func(int) {
				p := w.event("rank", "nth", "errno")
				f.FailRegister = append(f.FailRegister, FailRegister{p.rank, p.nth, p.errno})
			})
		case "rail_down":
			w.list(false, func(int) { f.RailDown = append(f.RailDown, w.rail()) })
		case "rail_up":
			w.list(false, func(int) { f.RailUp = append(f.RailUp, w.rail()) })
		default:
			return false
		}
		f.used = append(f.used, key)
		return true
	})
	return f
}

func (w *walker) rank() int { return int(w.integer(0, maxRanks-1)) }

func (w *walker) seed() uint64 {
	t := w.token()
	if n, ok := t.(json.Number); ok {
		if v, err := strconv.ParseUint(n.String(), 10, 64); err == nil {
			return v
		}
	}
	w.wrong(t, "a whole number in 0..2^64-1")
	return 0
}

func (w *walker) delay() (least, most time.Duration) {
	var list []time.Duration
	w.list(false, func(int) {
		list = append(list, time.Duration(w.integer(0, 60e6))*time.Microsecond)
	})
	if len(list) != 2 || list[0] > list[1] {
		w.fault("want two numbers, the lesser first")
		return 0, 0
	}
	return list[0], list[1]
}

func (w *walker) pause() Pause {
	e := w.event("rank", "round", "phase", "ms")
	return Pause{e.rank, e.round, e.phase, time.Duration(e.ms) * time.Millisecond}
}

func (w *walker) rail() Rail {
	e := w.event("rank", "nic", "round")
	return Rail{e.rank, e.nic, e.round}
}

// event is one entry of a fault list: what of it is read depends on the kind.
type event struct {
	rank, round, nic, nth, ms int
	phase, errno              string
}

// event reads an object that must have exactly the given keys.
func (w *walker) event(keys ...string) event {
	var e event
	missing := map[string]bool{}
	for _, k := range keys {
		missing[k] = true
	}
	before := len(w.faults)
	w.object(func(key string) bool {
		if !missing[key] {
			return false
		}
		delete(missing, key)
		switch key {
		case "rank":
			e.rank = w.rank()
		case "round":
			e.round = int(w.integer(0, maxRound))
		case "nic":
			e.nic = int(w.integer(0, 63))
		case "nth":
			e.nth = int(w.integer(1, maxRound))
		case "ms":
			e.ms = int(w.integer(0, maxMillis))
		case "phase":
			e.phase = w.word(Phases)
		case "errno":
			e.errno = w.errno()
		}
		return true
	})
	for _, k := range keys {
		if missing[k] && w.err == nil && len(w.faults) == before {
			w.fault("%s is missing", k)
		}
	}
	return e
}

func (w *walker) errno() string {
	t := w.token()
	if s, ok := t.(string); ok && len(s) > 1 && len(s) <= 16 && s[0] == 'E' && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") == "" {
		return s
	}
	w.wrong(t, "the symbol of an errno, as ENOMEM")
	return ""
}
