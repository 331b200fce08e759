package verbs

import (
	"math/rand/v2"
	"testing"
)

// end is one end of a channel in a model: the course, what its queue pair is
// connected to, and whether news is to be told.
type end struct {
	course
	peer   int // epoch of the other end's queue pair that ours is connected to
	epochs uint32
}

func (e *end) renewed() { e.epochs++; e.renew(e.epochs); e.peer = 0 }

func (e *end) record() record { return record{epoch: e.epoch, seen: e.remote} }

// hears does what domain.hear does, and tells whether it answers.
func (e *end) hears(r record, asks bool) bool {
	m, answer := e.hear(r), false
	if m == moveRebuild {
		e.renewed()
		m, answer = e.hear(r), true
	}
	if m == moveConnect {
		e.peer, answer = int(r.epoch), true
	}
	return answer || m == moveAnswer && asks
}

type letter struct {
	to   int
	r    record
	asks bool
}

// Two ends whose messages are lost, doubled and overtaken, and whose queue pairs
// break at any moment, come to be connected to each other's present life as soon
// as things calm down, however little: some messages still get lost.
func TestHandshakeConverges(t *testing.T) {
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var ends [2]end
		var air []letter
		say := func(i int) {
			air = append(air, letter{1 - i, ends[i].record(), !ends[i].confirmed})
			if rnd.IntN(4) == 0 { // doubled
				air = append(air, air[len(air)-1])
			}
		}
		deliver := func() {
			k := rnd.IntN(len(air))
			l := air[k]
			if rnd.IntN(8) > 0 { // else it stays in the air, and comes again late
				air[k] = air[len(air)-1]
				air = air[:len(air)-1]
			}
			if rnd.IntN(3) == 0 {
				return // lost
			}
			if ends[l.to].hears(l.r, l.asks) {
				say(l.to)
			}
		}
		for i := range ends {
			if rnd.IntN(2) == 0 || i == 0 { // one dials, or both
				ends[i].renewed()
				say(i)
			}
		}
		if ends[1].epoch == 0 {
			ends[1].renewed() // a passive end is made when the first hello comes
		}
		for range rnd.IntN(60) { // trouble
			switch i := rnd.IntN(2); {
			case rnd.IntN(6) == 0:
				ends[i].renewed()
			case rnd.IntN(3) == 0:
				say(i)
			case len(air) > 0:
				deliver()
			}
		}
		agreed := func() bool {
			a, b := &ends[0], &ends[1]
			return a.confirmed && b.confirmed && a.peer == int(b.epoch) && b.peer == int(a.epoch)
		}
		steps := 0
		for ; !agreed() && steps < 4000; steps++ {
			for i := range ends {
				if !ends[i].confirmed {
					say(i) // as the clock makes it
				} else if peer := &ends[1-i]; ends[i].peer != int(peer.epoch) && rnd.IntN(4) == 0 {
					ends[i].renewed() // as the device finds out, by retrying
				}
			}
			for range 3 {
				if len(air) > 0 {
					deliver()
				}
			}
			if len(air) > 40 { // what is this old does not come any more
				air = air[len(air)-40:]
			}
		}
		if !agreed() {
			t.Fatalf("seed %d: not connected: %+v", seed, ends)
		}
	}
}

// What was confirmed is connected at both ends: a request is never sent into a
// queue pair that the other end has not connected.
func TestConfirmedMeansConnected(t *testing.T) {
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		var ends [2]end
		var air []letter
		for i := range ends {
			ends[i].renewed()
		}
		for step := range 200 {
			i := rnd.IntN(2)
			if rnd.IntN(2) == 0 || len(air) == 0 {
				air = append(air, letter{1 - i, ends[i].record(), true})
				continue
			}
			l := air[rnd.IntN(len(air))]
			if ends[l.to].hears(l.r, l.asks) {
				air = append(air, letter{1 - l.to, ends[l.to].record(), true})
			}
			for k := range ends { // no queue pair breaks here
				if e, o := &ends[k], &ends[1-k]; e.confirmed && (o.peer != int(e.epoch) || e.peer != int(o.epoch)) {
					t.Fatalf("seed %d, step %d: end %d thinks that it is connected: %+v", seed, step, k, ends)
				}
			}
		}
	}
}
