package loopback

import (
	"testing"

	"moerail/transport"
)

// TestMappedMemoryOutlivesItsOwner: what a peer has mapped stays until the peer
// releases it or closes, though its owner closed and freed it.
func TestMappedMemoryOutlivesItsOwner(t *testing.T) {
	for _, release := range []bool{false, true} {
		f, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		owner, user := f.Process("owner", "h"), f.Process("user", "h")
		od, err := owner.Open("lo0", transport.DomainConfig{})
		if err != nil {
			t.Fatal(err)
		}
		ud, err := user.Open("lo0", transport.DomainConfig{})
		if err != nil {
			t.Fatal(err)
		}
		m, err := owner.Alloc(2 << 20)
		if err != nil {
			t.Fatal(err)
		}
		region, err := od.Register(m, transport.AccessRemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		p, err := ud.AddPeer(od.Addr())
		if err != nil {
			t.Fatal(err)
		}
		r, err := ud.Import(p, region.RemoteKey(), m.Size)
		if err != nil {
			t.Fatal(err)
		}
		var mapped transport.Memory
		for range 2 { // twice is the same mapping
			if mapped, err = ud.(transport.MemoryMapper).MapRemote(r); err != nil {
				t.Fatal(err)
			}
		}
		if err := od.Close(); err != nil {
			t.Fatal(err)
		}
		if err := owner.Free(m); err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(mapped.Host); i += 4096 {
			mapped.Host[i] = 1 // faults if it is gone
		}
		if _, err := ud.(transport.MemoryMapper).MapRemote(r); err == nil {
			t.Error("memory of a closed domain can be mapped anew")
		}
		mapped.Host[0] = 2
		if n := len(f.maps.freed); n != 1 {
			t.Errorf("%d freed areas are kept, want 1", n)
		}
		if release {
			err = ud.Release(r)
		} else {
			err = ud.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(f.maps.freed) != 0 || len(f.maps.users) != 0 {
			t.Errorf("%d areas are kept, %d mapped", len(f.maps.freed), len(f.maps.users))
		}
		ud.Close()
	}
}
