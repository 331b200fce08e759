//go:build !race

package protocolmodel

const raceEnabled = false
