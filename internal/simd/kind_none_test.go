//go:build !amd64 || purego || race

package simd

import "testing"

func eachKind(t *testing.T, f func(t *testing.T)) { t.Run(Kind(), f) }
