package peergroup

import (
	"slices"
	"testing"
)

// inbox records what the hub says to a rank.
type inbox struct {
	results []uint32
	absent  []absence
	gone    []LostError
}

func (b *inbox) result(id uint32, _ [][]byte) { b.results = append(b.results, id) }
func (b *inbox) failed(_ uint32, a absence)   { b.absent = append(b.absent, a) }
func (b *inbox) lost(e LostError)             { b.gone = append(b.gone, e) }
func always(sink) bool                        { return true }
func never(sink) bool                         { return false }

// A second try of one process takes its first try's seat, but only until the
// group is complete.
func TestSeatReplaced(t *testing.T) {
	h := newHub(2, false)
	a, b, b2 := &inbox{}, &inbox{}, &inbox{}
	h.take(0, a, never)
	h.take(1, b, never)
	h.contribute(1, b, 0, joinKey, nil)
	if h.take(1, b2, never) != seatTaken || h.take(1, b2, always) != seatFree {
		t.Fatal("the seat must go to a second try, and to nobody else")
	}
	h.contribute(0, a, 0, joinKey, nil)
	if h.assembled {
		t.Fatal("the first try's contribution counts still")
	}
	h.leave(1, b, LossConnection) // the first try's end is of no concern
	h.contribute(1, b2, 7, joinKey, nil)
	if !h.assembled || !slices.Equal(b2.results, []uint32{7}) || len(b.results) > 0 {
		t.Fatalf("assembled %v, answers %v and %v", h.assembled, b2.results, b.results)
	}
	if h.take(1, &inbox{}, always) != seatTaken {
		t.Error("a seat of a complete group was given away")
	}
	h.leave(1, b2, LossConnection)
	h.leave(0, a, LossClosed)
	if len(a.gone) != 1 || a.gone[0] != (LostError{1, LossConnection}) {
		t.Errorf("told %v", a.gone)
	}
	if h.take(1, &inbox{}, always) != seatLate {
		t.Error("a group that lost a rank took another")
	}
}

// Who gave up before is told apart from who never came, unless nobody else is
// missing.
func TestGaveUp(t *testing.T) {
	h := newHub(4, true)
	in := make([]*inbox, 4)
	for r := range in {
		in[r] = &inbox{}
		h.take(r, in[r], never)
	}
	h.contribute(0, in[0], 0, "k", nil)
	h.contribute(1, in[1], 0, "k", nil)
	h.contribute(2, in[2], 0, "k", nil)
	h.contribute(3, in[3], 0, "other", nil)
	h.withdraw(0, in[0], 0)
	h.withdraw(1, in[1], 0)
	if a := in[1].absent[0]; !slices.Equal(a.missing, []int{3}) || !slices.Equal(a.gaveUp, []int{0}) ||
		len(a.waiting) != 1 || a.waiting[0].Rank != 3 || a.waiting[0].Keys[0] != "other" {
		t.Errorf("%+v", a)
	}
	h.contribute(3, in[3], 1, "k", nil)
	h.withdraw(2, in[2], 0)
	if a := in[2].absent[0]; !slices.Equal(a.missing, []int{0, 1}) || !slices.Equal(a.gaveUp, []int{0, 1}) {
		t.Errorf("%+v", a)
	}
	h.withdraw(2, in[2], 0) // answered already
	h.withdraw(2, in[2], 9) // never made
	if len(in[2].absent) != 1 {
		t.Errorf("answered %d times", len(in[2].absent))
	}
}

// The same key many times over on one rank is matched in order.
func TestSameKeyInOrder(t *testing.T) {
	h := newHub(2, true)
	a, b := &inbox{}, &inbox{}
	h.take(0, a, never)
	h.take(1, b, never)
	for id := range uint32(3) {
		h.contribute(0, a, id, "k", nil)
	}
	h.withdraw(0, a, 1)
	h.contribute(1, b, 10, "k", nil)
	h.contribute(1, b, 11, "k", nil)
	h.contribute(1, b, 12, "k", nil)
	if !slices.Equal(a.results, []uint32{0, 2}) || !slices.Equal(b.results, []uint32{10, 11}) {
		t.Errorf("answers %v and %v", a.results, b.results)
	}
}
