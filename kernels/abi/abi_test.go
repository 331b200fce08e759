package abi

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

var structTypes = []any{Status{}, Control{}, Source{}, Header{}, RowMeta{}, Pick{}, Shape{}, Slot{},
	DispatchSendParams{}, DispatchRecvParams{}, CombineSendParams{}, CombineRecvParams{}}

var constants = map[string]int{
	"MOE_MAX_RANKS": MaxRanks, "MOE_HEADER_FIXED_BYTES": HeaderFixedBytes, "MOE_ROW_META_BYTES": RowMetaBytes, "MOE_PICK_BYTES": PickBytes,
	"MOE_FP32": int(FP32), "MOE_BF16": int(BF16), "MOE_FP16": int(FP16), "MOE_FP8": int(FP8),
	"MOE_LAYOUT_GROUPED": int(LayoutGrouped), "MOE_LAYOUT_BATCHED": int(LayoutBatched), "MOE_LAYOUT_ROWS": int(LayoutRows),
	"MOE_ID_INT32": int(IDInt32), "MOE_ID_INT64": int(IDInt64), "MOE_ID_UINT32": int(IDUint32), "MOE_FLAG_ABORTED": FlagAborted,
	"MOE_CODE_OK": CodeOK, "MOE_CODE_INVALID_EXPERT": CodeInvalidExpert, "MOE_CODE_TOO_MANY_TOKENS": CodeTooManyTokens,
	"MOE_CODE_BAD_HEADER": CodeBadHeader, "MOE_CODE_BAD_ROW": CodeBadRow, "MOE_CODE_OVERFLOW": CodeOverflow,
	"MOE_CODE_ABORTED": CodeAborted, "MOE_CODE_STOPPED": CodeStopped, "MOE_STAGE_NONE": StageNone,
	"MOE_STAGE_DISPATCH_SEND": StageDispatchSend, "MOE_STAGE_DISPATCH_RECV": StageDispatchRecv,
	"MOE_STAGE_COMBINE_SEND": StageCombineSend, "MOE_STAGE_COMBINE_RECV": StageCombineRecv,
}

var (
	wordStart  = regexp.MustCompile(`([a-z0-9])([A-Z])`)
	afterShort = regexp.MustCompile(`([A-Z])([A-Z][a-z])`)
)

// snake is the C name of a Go name.
func snake(s string) string {
	if s == "IDs" {
		return "ids"
	}
	return strings.ToLower(wordStart.ReplaceAllString(afterShort.ReplaceAllString(s, "${1}_${2}"), "${1}_${2}"))
}

// program prints "struct.member offset size" for every named member of a Go struct
// that takes room, sizes of the structs, how many members C has, and constants.
func program() (source string, want map[string]string) {
	want = map[string]string{}
	var b strings.Builder
	b.WriteString("#include <stdio.h>\n#include \"moe_abi.h\"\nint main(void) {\n")
	for _, v := range structTypes {
		t := reflect.TypeOf(v)
		c := "moe_" + snake(t.Name())
		fmt.Fprintf(&b, "printf(\"%s %%d 0\\n\", (int)sizeof(struct %s));\n", c, c)
		want[c] = fmt.Sprint(t.Size(), " 0")
		for i := range t.NumField() {
			f := t.Field(i)
			if f.Name == "_" {
				continue
			}
			m := c + "." + snake(f.Name)
			fmt.Fprintf(&b, "printf(\"%s %%d %%d\\n\", (int)offsetof(struct %s, %s), (int)sizeof(((struct %s *)0)->%s));\n",
				m, c, snake(f.Name), c, snake(f.Name))
			want[m] = fmt.Sprint(f.Offset, " ", f.Type.Size())
		}
	}
	for name, v := range constants {
		fmt.Fprintf(&b, "printf(\"%s %%d 0\\n\", (int)%s);\n", name, name)
		want[name] = fmt.Sprint(v, " 0")
	}
	b.WriteString("return 0;\n}\n")
	return b.String(), want
}

func TestTheHeaderHasTheSameLayout(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler named cc: the header is not compared")
	}
	dir := t.TempDir()
	source, want := program()
	file, exe := filepath.Join(dir, "abi.c"), filepath.Join(dir, "abi")
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-std=c99", "-Wall", "-Werror", "-I", here, "-o", exe, file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(exe).Output()
	if err != nil {
		if e := (*exec.ExitError)(nil); errors.As(err, &e) {
			t.Fatalf("%v\n%s", err, e.Stderr)
		}
		t.Skipf("the compiled program cannot be run: %v", err)
	}
	got := map[string]string{}
	for line := range bytes.Lines(out) {
		name, rest, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		got[name] = rest
	}
	if len(got) != len(want) {
		t.Errorf("C printed %d names, want %d", len(got), len(want))
	}
	for name, w := range want {
		if got[name] != w {
			t.Errorf("%s: C has %q (offset or value, size), Go %q", name, got[name], w)
		}
	}
}

// Padding in Go must be explicit too, and only 4- and 8-byte members: else other
// compilers could lay the struct out differently.
func TestStructsHaveNoHiddenPadding(t *testing.T) {
	for _, v := range structTypes {
		ty := reflect.TypeOf(v)
		if f := ty.Field(0); f.Type.String() != "structs.HostLayout" {
			t.Errorf("%s does not start with structs.HostLayout", ty.Name())
		}
		var end uintptr
		for i := range ty.NumField() {
			f := ty.Field(i)
			if f.Offset != end {
				t.Errorf("%s.%s lies at %d, want %d", ty.Name(), f.Name, f.Offset, end)
			}
			end += f.Type.Size()
		}
		if end != ty.Size() {
			t.Errorf("%s has %d bytes of hidden padding at its end", ty.Name(), ty.Size()-end)
		}
	}
}
