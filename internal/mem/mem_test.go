package mem

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"moerail/transport"
)

func TestAllocIsZeroedAlignedAndFreed(t *testing.T) {
	for _, n := range []uint64{1, 4095, 4096, 4097, 3 << 20} {
		m, err := Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		if uint64(len(m.Host)) != n || m.Size != n || Addr(m.Host)%4096 != 0 || m.FD != -1 {
			t.Fatalf("%d bytes: len %d size %d addr %#x fd %d", n, len(m.Host), m.Size, Addr(m.Host), m.FD)
		}
		for i, b := range m.Host {
			if b != 0 {
				t.Fatalf("byte %d is %d", i, b)
			}
		}
		if err := Free(m); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSharedMemoryIsSeenThroughASecondMapping(t *testing.T) {
	m, err := AllocShared("t", 10000)
	if err != nil {
		t.Fatal(err)
	}
	defer Free(m)
	b, err := MapShared(m.FD, 4096, 5904)
	if err != nil {
		t.Fatal(err)
	}
	defer Unmap(b)
	Word64(m.Host, 4096).Store(77)
	if got := Word64(b, 0).Load(); got != 77 {
		t.Fatalf("second mapping reads %d", got)
	}
}

func TestAdviseHugeLeavesMemoryUsable(t *testing.T) {
	for _, n := range []uint64{1, hugeBytes - 1, hugeBytes, 3*hugeBytes + 5} {
		m, err := Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		AdviseHuge(m)
		m.Host[0], m.Host[n-1] = 1, 2
		if err := Free(m); err != nil {
			t.Fatal(err)
		}
	}
	AdviseHuge(transport.Memory{FD: -1})
}

func TestBadSizesAreErrors(t *testing.T) {
	for _, n := range []uint64{0, MaxBytes + 1, 1 << 63} {
		if _, err := Alloc(n); !errors.Is(err, ErrSize) {
			t.Errorf("Alloc(%d): %v", n, err)
		}
		if _, err := AllocShared("t", n); !errors.Is(err, ErrSize) {
			t.Errorf("AllocShared(%d): %v", n, err)
		}
	}
	m, err := AllocShared("t", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer Free(m)
	for _, c := range [][2]uint64{{0, 8193}, {1, 10}, {4096, 1}, {1 << 60, 1}} {
		if _, err := MapShared(m.FD, c[0], c[1]); err == nil {
			t.Errorf("MapShared(off %d, size %d) beyond the object succeeded", c[0], c[1])
		}
	}
	if _, err := MapShared(-1, 0, 10); !errors.Is(err, unix.EBADF) {
		t.Errorf("bad descriptor: %v", err)
	}
}

func TestWordsCheckBoundsAndAlignment(t *testing.T) {
	m, _ := Alloc(64)
	defer Free(m)
	for _, f := range []func(){
		func() { Word64(m.Host, 60) }, func() { Word64(m.Host, 4) }, func() { Word64(m.Host, 1<<63) },
		func() { Word32(m.Host, 62) }, func() { Word32(m.Host, 2) }, func() { Word32(nil, 0) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f()
		}()
	}
}

func TestSharedMemoryCannotShrinkAndPublishedCannotBeWritten(t *testing.T) {
	m, err := AllocShared("t", 8192)
	if err != nil {
		t.Fatal(err)
	}
	defer Free(m)
	if err := CheckSealed(m.FD); err != nil {
		t.Error(err)
	}
	if err := unix.Ftruncate(m.FD, 4096); err == nil {
		t.Error("a sealed object shrank")
	}
	p, err := AllocPublished("t", 8192)
	if err != nil {
		t.Fatal(err)
	}
	defer Free(p)
	if seals, _ := unix.FcntlInt(uintptr(p.FD), unix.F_GET_SEALS, 0); seals&fSealFutureWrite != 0 {
		if b, err := MapShared(p.FD, 0, 4096); err == nil {
			Unmap(b)
			t.Error("published memory could be mapped for writing")
		}
	}
	ro, err := MapReadOnly(p.FD, 4096, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer Unmap(ro)
	Word64(p.Host, 4096).Store(9)
	if got := Word64(ro, 0).Load(); got != 9 {
		t.Errorf("read-only mapping reads %d", got)
	}

	bare, err := unix.MemfdCreate("t", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(bare)
	if err := CheckSealed(bare); !errors.Is(err, ErrUnsealed) {
		t.Errorf("unsealed memfd: %v", err)
	}
	if err := CheckSealed(-1); err == nil {
		t.Error("descriptor -1 counted as sealed")
	}
}
