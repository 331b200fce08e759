package transport

import "testing"

func TestAccessBitsAreDistinct(t *testing.T) {
	if AccessRemoteWrite != 1 || AccessRemoteRead != 2 || AccessRemoteAtomic != 4 {
		t.Fatalf("access bits are %d %d %d, want 1 2 4", AccessRemoteWrite, AccessRemoteRead, AccessRemoteAtomic)
	}
}

func TestStatusAndOpcodeNames(t *testing.T) {
	for s := StatusOK; s <= StatusFault; s++ {
		if s.String() == "unknown status" || s.String() == "" {
			t.Errorf("status %d has no name", s)
		}
	}
	for o := OpWrite; o <= OpImm; o++ {
		if o.String() == "unknown op" || o.String() == "" {
			t.Errorf("opcode %d has no name", o)
		}
	}
	if Status(200).String() != "unknown status" || Opcode(200).String() != "unknown op" {
		t.Error("values outside the range must say so")
	}
}
