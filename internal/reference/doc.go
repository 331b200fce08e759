// Package reference is the test oracle: dispatch, experts and combine of one
// mixture-of-experts round, slow and obvious, written from the definition and
// sharing no code with the runtime it judges. It has its own number
// conversions, its own placement and its own sums, so that a fault in the
// runtime's copy of any of them shows.
//
//	x (float32) --Convert--> dtype --decode--> fp32 --expert e--> out dtype
//	   y[k] = round_out( round32(scale[e]*x) + bias[e] )
//	reduce home:    out = round_out( sum over picks k of round32(w[k]*y[k]) )
//	reduce expert:  out = round_out( sum over ranks of round_out( that rank's sum ) )
//
// Exact evaluates this step by step in the stated order and is what a
// deterministic runtime must return bit for bit. Real evaluates the same sums
// in float64 and states, per element, how far a runtime may be off that keeps
// the number of roundings but not their order.
//
// Anybody may call from any goroutine: nothing here keeps state.
package reference
