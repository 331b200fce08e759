// Package replay carries out case files: the body of `moerail exec`.
//
//	casefile.Case --> ranks as goroutines over one loopback fabric --> casefile.Result
//
// Every rank goes through the rounds on its own; nothing but the runtime holds
// it back. Rounds go over the slots round-robin: with S slots, S rounds are in
// flight together, in the order every dispatch-send, then for each slot
// dispatch-receive, experts and combine-send, then every combine-receive.
//
// A rank whose input the host refuses is called again with no tokens, so that
// the round goes on. After an error that ends a communicator (a deadline, a lost
// peer) its rank is called no more, and the later rounds have the same error.
package replay
