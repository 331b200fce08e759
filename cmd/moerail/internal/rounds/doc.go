// Package rounds runs MoE rounds and judges them: the body of `moerail run`.
//
//	Options --> launch: ranks as goroutines | one process each | this process is one rank
//	              |
//	              v one rank's loop, "|" is an untimed barrier over all ranks
//	| DispatchSend DispatchRecv | experts | CombineSend CombineRecv | check
//	  `---------- timed ------'             `--------- timed ----'
//	              |
//	              v AllGather
//	RankResult of every rank --Merge--> Report, the JSON document
//
// The barriers keep one rank's experts and checks, which stand for a model, out
// of another rank's times; without them a machine with fewer cores than ranks
// would measure its scheduler.
//
// A round is one micro-batch's dispatch and combine. With Slots > 1 a step
// carries one round per slot, all in flight together, in the order a serving
// stack uses: every send, then for each slot receive, experts and combine-send,
// then every combine-receive. Rounds and Warmup are rounded up to whole steps.
//
// The duration of a phase in a round is the longest of any rank's call, each
// measured by that rank's clock from its entry to its return; dispatch is the
// longest of a rank's send plus receive, likewise combine, and round the longest
// of a rank's dispatch plus combine.
package rounds
