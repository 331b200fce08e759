// Package micro measures single operations between ranks: what `moerail bench`
// prints.
//
//	Write   two ranks  -->  latency of a write with immediate there and back
//	                        rate of a stream of them
//
// The same two measurements are made of the raw libraries by the programs of
// bench/peers/fabric and bench/peers/verbs; what a sample is, how many there are of
// each size and how bytes lie is written down in bench/peers/pair.h and holds here.
//
// Every byte is looked at before the first time of a size is taken, and again after
// the last.
package micro
