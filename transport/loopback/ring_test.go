package loopback

import (
	"runtime"
	"sync"
	"testing"
)

func TestInboxKeepsEveryValueOfEveryProducerInOrder(t *testing.T) {
	const producers, each = 4, 2000
	q := newInbox[[2]int](5)
	var wg sync.WaitGroup
	for p := range producers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := 0; i < each; {
				if !q.reserve() {
					runtime.Gosched()
					continue
				}
				q.deliver([2]int{p, i})
				i++
			}
		}()
	}
	var next [producers]int
	for n := 0; n < producers*each; {
		v := q.peek()
		if v == nil {
			q.release()
			runtime.Gosched()
			continue
		}
		if v[1] != next[v[0]] {
			t.Fatalf("producer %d: got %d, want %d", v[0], v[1], next[v[0]])
		}
		next[v[0]]++
		n++
		q.pop()
	}
	q.release()
	wg.Wait()
	if q.peek() != nil || q.reserved.Load() != 0 {
		t.Errorf("left over: %v, %d reserved", q.peek(), q.reserved.Load())
	}
}

func TestInboxLimitIsExact(t *testing.T) {
	q := newInbox[int](3)
	for i := range 3 {
		if !q.reserve() {
			t.Fatalf("no room for value %d of 3", i+1)
		}
		q.deliver(i)
	}
	if q.reserve() {
		t.Fatal("room for a fourth of 3")
	}
	q.pop()
	if q.reserve() {
		t.Fatal("room before release")
	}
	q.release()
	if !q.reserve() || q.reserve() {
		t.Fatal("after one release there must be room for one")
	}
}
