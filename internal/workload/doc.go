// Package workload says which experts the tokens of a run go to: drawn from a
// distribution, or read from recorded routing.
//
//	"uniform"  "zipf:1.2"  "one:3"  "FILE.u8:7"  "FILE.jsonl"
//	               \--Open--> Source --Fill(rank, round)--> ids, weights
//
// A Source is immutable after Open: any number of goroutines may call Fill at
// once, and Fill allocates nothing. What it gives depends on the seed, the rank
// and the round alone, so every process of a job can work out every rank's
// routing, and a round can be repeated.
//
// The package also reads expert placements.
package workload
