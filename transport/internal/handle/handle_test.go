package handle

import "testing"

func TestHandlesFindTheirValueUntilRemoved(t *testing.T) {
	tab := New[int](5)
	var hs []int32
	for v := range 100 {
		h, err := tab.Add(v)
		if err != nil || h < 0 {
			t.Fatalf("Add(%d) = %d, %v", v, h, err)
		}
		hs = append(hs, h)
	}
	for v, h := range hs {
		if p := tab.Get(h); p == nil || *p != v {
			t.Fatalf("handle %#x: got %v, want %d", h, p, v)
		}
	}
	for _, h := range hs {
		if !tab.Remove(h) || tab.Get(h) != nil || tab.Remove(h) {
			t.Fatalf("handle %#x lives on after Remove", h)
		}
	}
	if tab.Len() != 0 {
		t.Fatalf("%d live handles", tab.Len())
	}
}

func TestAReusedSlotHasAnotherHandle(t *testing.T) {
	tab := New[string](0)
	old, _ := tab.Add("old")
	tab.Remove(old)
	for range 1000 {
		h, _ := tab.Add("new")
		if h == old {
			t.Fatal("a released handle came back within 1000 uses of its slot")
		}
		if tab.Get(old) != nil {
			t.Fatal("released handle resolves")
		}
		tab.Remove(h)
	}
}

func TestTablesOfDifferentOwnersRefuseEachOther(t *testing.T) {
	const owners = 512
	tabs := make([]Table[int], owners)
	hs := make([]int32, owners)
	for i := range tabs {
		tabs[i] = New[int](uint64(i))
		hs[i], _ = tabs[i].Add(i)
	}
	for i := range tabs {
		for j, h := range hs {
			if (tabs[i].Get(h) != nil) != (i == j) {
				t.Fatalf("table %d resolves the handle of %d: %v", i, j, i != j)
			}
		}
	}
}

func TestGarbageIsNotAHandle(t *testing.T) {
	tab := New[int](9)
	h, _ := tab.Add(1)
	for _, bad := range []int32{-1, -1 << 31, 1<<31 - 1, h ^ 1, h ^ 1<<20, h | -1<<31} {
		if tab.Get(bad) != nil || tab.Remove(bad) {
			t.Errorf("%#x resolves", bad)
		}
	}
	var zero Table[int]
	if zero.Get(0) != nil {
		t.Error("an empty table resolves 0")
	}
}

func TestEachVisitsLiveHandlesAndMayRemove(t *testing.T) {
	tab := New[int](1)
	for v := range 10 {
		tab.Add(v)
	}
	sum := 0
	tab.Each(func(h int32, v *int) {
		sum += *v
		if *v%2 == 0 {
			tab.Remove(h)
		}
	})
	if sum != 45 || tab.Len() != 5 {
		t.Fatalf("sum %d, %d left", sum, tab.Len())
	}
}

func TestAFullTableIsAnError(t *testing.T) {
	var tab Table[struct{}]
	for range MaxSlots {
		if _, err := tab.Add(struct{}{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tab.Add(struct{}{}); err == nil {
		t.Fatal("one handle more than MaxSlots")
	}
}
