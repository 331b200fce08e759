package micro

import (
	"math"
	"slices"
)

// Latency is one way's time over all samples, in microseconds. Percentiles are by
// nearest rank: values that occurred.
type Latency struct {
	Samples int     `json:"samples"`
	Min     float64 `json:"min"`
	P50     float64 `json:"p50"`
	P90     float64 `json:"p90"`
	P99     float64 `json:"p99"`
	P999    float64 `json:"p99_9"`
	Max     float64 `json:"max"`
}

// Bandwidth is the rate of payload bytes over the bursts of a size.
type Bandwidth struct {
	Messages          int     `json:"messages"` // of a burst
	Bursts            int     `json:"bursts"`
	BytesPerSecond    float64 `json:"bytes_per_second"`      // median of the bursts
	Best              float64 `json:"best_bytes_per_second"` // of the fastest
	MessagesPerSecond float64 `json:"messages_per_second"`   // median
}

// SizeResult is what was measured of one size.
type SizeResult struct {
	Bytes     uint64    `json:"bytes"`
	Latency   Latency   `json:"latency_us"`
	Bandwidth Bandwidth `json:"bandwidth"`
}

// nearestRank is the value of sorted, which has at least one, that a share q of all
// does not exceed.
func nearestRank[T any](sorted []T, q float64) T {
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// latencyOf sorts round trips, in nanoseconds, and halves them.
func latencyOf(trips []int64) Latency {
	slices.Sort(trips)
	at := func(q float64) float64 { return float64(nearestRank(trips, q)) / 2e3 }
	return Latency{Samples: len(trips), Min: at(0), P50: at(0.5), P90: at(0.9), P99: at(0.99), P999: at(0.999), Max: at(1)}
}

// bandwidthOf sorts the seconds of bursts.
func bandwidthOf(size uint64, messages int, seconds []float64) Bandwidth {
	slices.Sort(seconds)
	n := float64(messages)
	// the median rate is the one of the nearest rank from above, as the raw programs take it
	rates := make([]float64, len(seconds))
	for i, s := range seconds {
		rates[len(seconds)-1-i] = n / s
	}
	rate := nearestRank(rates, 0.5)
	return Bandwidth{Messages: messages, Bursts: len(seconds), BytesPerSecond: rate * float64(size),
		Best: rates[len(rates)-1] * float64(size), MessagesPerSecond: rate}
}
