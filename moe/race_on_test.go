//go:build race

package moe

const raceEnabled = true
