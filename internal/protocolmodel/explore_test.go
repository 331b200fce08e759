package protocolmodel

import (
	"math/rand/v2"
	"testing"
)

// maxStates bounds one exploration; the largest one here stays well below it.
const maxStates = 8_000_000

// allRoutings yields every routing of the shape with row counts taken from rows.
func allRoutings(ranks, rounds int, rows []int, yield func(Routing)) {
	pairs := ranks * (ranks - 1) * rounds
	total := 1
	for range pairs {
		total *= len(rows)
	}
	for i := range total {
		x := i
		yield(makeRouting(ranks, rounds, func() int {
			v := rows[x%len(rows)]
			x /= len(rows)
			return v
		}))
	}
}

func sampleRouting(r *rand.Rand, ranks, rounds int, rows []int) Routing {
	return makeRouting(ranks, rounds, func() int { return rows[r.IntN(len(rows))] })
}

func makeRouting(ranks, rounds int, next func() int) Routing {
	routing := make(Routing, rounds)
	for n := range routing {
		routing[n] = make([][]int, ranks)
		for p := range routing[n] {
			routing[n][p] = make([]int, ranks)
			for q := range routing[n][p] {
				if p != q {
					routing[n][p][q] = next()
				}
			}
		}
	}
	return routing
}

// mustHold explores c and fails the test on a violation or an exploration that
// never ends a run.
func mustHold(t *testing.T, c Config) int {
	t.Helper()
	r, err := Explore(c, maxStates)
	if err != nil {
		t.Fatal(err)
	}
	if r.Violation != nil {
		t.Fatalf("routing %v: %v", c.Routing, r.Violation)
	}
	if r.Ends == 0 {
		t.Fatalf("routing %v: no run came to its end", c.Routing)
	}
	return r.States
}

// reduced divides the number of samples where time is short.
func reduced(samples int) int {
	if raceEnabled || testing.Short() {
		return max(samples/8, 1)
	}
	return samples
}

// Two ranks, three rounds: every routing, with the fetch of the send buffer as an
// event of its own.
func TestTwoRanksAllRoutings(t *testing.T) {
	for _, tc := range []struct {
		name string
		rows []int
		Config
	}{
		{"plain", []int{0, 1}, Config{Shards: 1}},
		{"two shards", []int{0, 2}, Config{Shards: 2}},
		{"exact", []int{0, 2}, Config{Shards: 1, Exact: true, WindowRows: 1}},
		{"exact, two shards", []int{0, 3}, Config{Shards: 2, Exact: true, WindowRows: 1}},
		{"exact, refusing", []int{0, 3}, Config{Shards: 1, Exact: true, WindowRows: 1, MaxRecvRows: 1}},
		{"direct", []int{0, 1}, Config{Shards: 1, Node: []int{0, 0}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			i, routings, states := 0, 0, 0
			allRoutings(2, 3, tc.rows, func(routing Routing) {
				if i++; reduced(8) == 1 && i%8 != 0 {
					return
				}
				c := tc.Config
				c.LateFetch = true
				c.Routing = routing
				states += mustHold(t, c)
				routings++
			})
			t.Logf("%d routings, %d states", routings, states)
		})
	}
}

// Three ranks, where a fast and a slow peer meet: sampled routings, after the two
// extreme ones.
func TestThreeRanksSampledRoutings(t *testing.T) {
	for _, tc := range []struct {
		name    string
		samples int
		rounds  int
		rows    []int
		Config
	}{
		{"plain", 24, 3, []int{0, 1}, Config{Shards: 1}},
		{"plain, four rounds", 8, 4, []int{0, 1}, Config{Shards: 1}},
		{"late fetch", 4, 3, []int{0, 0, 1}, Config{Shards: 1, LateFetch: true}},
		{"two shards", 3, 3, []int{0, 0, 0, 1, 2}, Config{Shards: 2}},
		{"exact", 4, 3, []int{0, 0, 0, 1, 2}, Config{Shards: 1, Exact: true, WindowRows: 1}},
		{"exact, refusing", 4, 3, []int{0, 0, 0, 2}, Config{Shards: 1, Exact: true, WindowRows: 1, MaxRecvRows: 1}},
		{"one node", 8, 3, []int{0, 1}, Config{Shards: 1, Node: []int{0, 0, 0}}},
		{"two nodes", 8, 3, []int{0, 1}, Config{Shards: 1, Node: []int{0, 0, 1}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(3, uint64(tc.samples)))
			states, samples := 0, reduced(tc.samples)
			for i := range samples {
				c := tc.Config
				c.Routing = sampleRouting(r, 3, tc.rounds, tc.rows)
				if i == 0 && samples > 1 {
					c.Routing = sampleRouting(r, 3, tc.rounds, []int{0})
				}
				if i == 1 && tc.Shards == 1 && !tc.Exact {
					c.Routing = sampleRouting(r, 3, tc.rounds, []int{1})
				}
				states += mustHold(t, c)
			}
			t.Logf("%d routings, %d states", samples, states)
		})
	}
}
