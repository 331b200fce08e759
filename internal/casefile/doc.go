// Package casefile reads moerail-case/1 files and writes moerail-result/1
// documents, and says through the reference what a case must give.
//
//	case file --Decode--> *Case --(a runtime runs it)--> *Result --WriteResult--> JSON
//	                        |                               |
//	                        +--Expect--> *Result            +--Check, Match
//	                              (internal/reference)
//
// It knows nothing of the runtime: whoever runs a case translates a Case into
// the runtime's own configuration and the runtime's answers into a Result.
//
// # What is required, what has a default
//
// format, ranks, experts, top_k, hidden and rounds must be there. The others
// default to: max_tokens 8 or the longest token list of the case, whichever is
// more; dtype and out_dtype fp32; scale_block 0; layout grouped;
// expert_alignment 1; reduce expert; apply_weights true; replicas 1;
// ranks_per_node 0; nics 1; slots 1; send_depth, window_rows and max_recv_rows 0;
// placement null; fabric loopback; deadline_ms 2000; first_deadline_ms 0;
// on_failure stop; expert_fn scale 1 and bias 0; no overrides and no faults. In
// a round repeat defaults to 1, and x, ids and weights that are absent or null
// are lists of no tokens.
//
// # What is a bad file and what is a bad input
//
// A fault of the file (unknown or doubled key, wrong type, value outside its
// range, expert_fn of another length than experts, ...) is an error of Decode,
// which reports all of them with their paths. A fault that a caller of the
// runtime could make in a call is no fault of the file; it is carried to the
// runtime, which must refuse that rank's input: more tokens than max_tokens, an
// expert id out of range, a row of x that is not hidden long, ids or weights
// that are not top_k wide, lists of different lengths, rank_overrides that make
// ranks disagree.
package casefile

//go:generate go run ./gen ../../testdata/cases
