package loopback

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"moerail/transport"
)

// TestNoAccessAfterClose closes regions and domains while others write into
// them and read from them. What Close returned for is the test's own memory
// again: it is overwritten plainly, which the race detector watches.
func TestNoAccessAfterClose(t *testing.T) {
	for name, faults := range map[string]*Faults{
		"fast":   nil,
		"faults": {Seed: 3, Reorder: true, PacketBytes: 20000},
	} {
		for what, end := range map[string]func(*site){
			"target region": func(b *site) { b.region.Close() },
			"target domain": func(b *site) { b.d.Close() },
			"process":       func(b *site) { b.proc.Kill() },
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				f, err := New(Config{Faults: faults})
				if err != nil {
					t.Fatal(err)
				}
				b := newSite(t, f, "b", "")
				var stop atomic.Bool
				var wg sync.WaitGroup
				var begun atomic.Int32
				const writers, n = 3, siteBytes / 8
				for w := range uint64(writers) {
					a := newSite(t, f, "a", "")
					a.knows(b)
					for i := range a.mem.Host[:n] {
						a.mem.Host[i] = 1
					}
					wg.Add(1)
					go func() {
						defer wg.Done()
						wr := a.write(n, 0)
						wr.Op, wr.RemoteOff = transport.OpWrite, w*2*n
						rd := wr
						rd.Op, rd.LocalOff, rd.RemoteOff = transport.OpRead, n, w*2*n+n
						wrs := []transport.WorkRequest{wr, rd}
						var out [32]transport.Completion
						for !stop.Load() {
							if _, err := a.d.Post(wrs); err != nil && err != transport.ErrAgain {
								t.Error(err)
								return
							}
							if _, err := a.d.Poll(out[:]); err != nil {
								t.Error(err)
								return
							}
							begun.Add(1)
							runtime.Gosched()
						}
					}()
				}
				for begun.Load() < 20*writers {
					runtime.Gosched()
				}
				end(b)
				clear(b.mem.Host)
				now := begun.Load()
				for begun.Load() < now+20*writers {
					runtime.Gosched()
				}
				for i, v := range b.mem.Host {
					if v != 0 {
						t.Fatalf("byte %d was written after Close", i)
					}
				}
				stop.Store(true)
				wg.Wait()
			})
		}
	}
}

// TestClosingEverythingAtOnce has all processes killed from different
// goroutines while their owners are at work: nobody waits for anybody for ever.
func TestClosingEverythingAtOnce(t *testing.T) {
	for name, faults := range map[string]*Faults{"fast": nil, "faults": {Reorder: true}} {
		t.Run(name, func(t *testing.T) {
			const n = 6
			f, err := New(Config{Faults: faults})
			if err != nil {
				t.Fatal(err)
			}
			var sites []*site
			for range n {
				sites = append(sites, newSite(t, f, "p", ""))
			}
			for i, s := range sites {
				s.knows(sites[(i+1)%n])
			}
			var wg sync.WaitGroup
			var turns atomic.Int32
			for _, s := range sites {
				wg.Add(2)
				go func() {
					defer wg.Done()
					wrs := []transport.WorkRequest{s.write(512, 1), {Op: transport.OpSend, Peer: s.peer, Local: s.region.LKey(), Len: 64, LocalOff: 1024}}
					wrs[0].RemoteOff = 2048
					rr := []transport.RecvRequest{{Local: s.region.LKey(), Off: 3072, Len: 64}}
					var out [32]transport.Completion
					for {
						s.d.Post(wrs)
						s.d.PostRecv(rr)
						if _, err := s.d.Poll(out[:]); err != nil {
							return
						}
						turns.Add(1)
						runtime.Gosched()
					}
				}()
				go func() {
					defer wg.Done()
					for turns.Load() < 50*n {
						runtime.Gosched()
					}
					s.proc.Kill()
				}()
			}
			wg.Wait()
			if left := len(*f.domains.Load()) + len(f.bySlot) + len(f.regions); left != 0 {
				t.Errorf("%d things left in the fabric", left)
			}
		})
	}
}
