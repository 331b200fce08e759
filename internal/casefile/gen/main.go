// Command gen writes the project's case files, what each must give, and their
// table, into a folder:
//
//	go run ./internal/casefile/gen testdata/cases
//
// The cases are made by code since most hold more numbers than anybody would
// type; nothing in them is left to chance, so writing them again changes nothing.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"moerail/internal/casefile"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gen FOLDER")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

// entry is one case of the collection.
type entry struct {
	id    string // the row of the catalogue of known failures it keeps, or a word for the group
	name  string // the file's, without .json
	shows string
	c     *casefile.Case
	open  bool // the outcome depends on timing: no expectation is kept
}

// write replaces the files in dir. Case files there that no entry makes are
// removed, so that the folder holds this collection and nothing else.
func write(dir string) error {
	files, err := render(entries())
	if err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return err
	}
	for _, path := range old {
		if _, kept := files[filepath.Base(path)]; !kept {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// render returns every file of the collection by name.
func render(list []entry) (map[string][]byte, error) {
	files := map[string][]byte{"README.md": table(list)}
	for _, e := range list {
		var text bytes.Buffer
		if err := casefile.Write(&text, e.c); err != nil {
			return nil, fmt.Errorf("%s: %w", e.name, err)
		}
		files[e.name+".json"] = slices.Clone(text.Bytes())
		if e.open {
			continue
		}
		// What is expected is what the file says, not what the code meant.
		c, err := casefile.Decode(&text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.name, err)
		}
		want, err := c.Expect()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.name, err)
		}
		var result bytes.Buffer
		if err := casefile.WriteResult(&result, want); err != nil {
			return nil, fmt.Errorf("%s: %w", e.name, err)
		}
		files[e.name+".want.json"] = result.Bytes()
	}
	return files, nil
}

const introduction = `# Cases

Each ` + "`NAME.json`" + ` is one experiment for ` + "`moerail exec`" + `; ` + "`NAME.want.json`" + ` beside it is what it must give, worked out by
` + "`internal/reference`" + `. Written by ` + "`go generate ./internal/casefile`" + `: do not edit, a test compares.

What an expectation leaves open (` + "`wire`" + ` or a part of it null, an empty ` + "`phase`" + `, the text of a message, null outputs beside
an error of the whole round) is not compared. Messages are foretold where each block is one message: every
rank a node of its own, one NIC, no replicas, windows that hold any round. Outputs are those of the stated order of
sums; outside ` + "`\"reduce\":\"home\"`" + ` with fp32 output a runtime may differ within the bound that ` + "`reference.Real`" + ` states.
Every expert has a function of its own, router weights do not sum to one, and ranks bring different numbers of tokens.

Some failures are no case, since a case file cannot say them; they are Go tests of the packages they concern: a rank that skips a
round (EP-02), 32-bit offsets (EP-15), a mutant with two experts swapped (EP-21), counters near their wrap (EP-27), calls out of order
(EP-29), two handles or two communicators (EP-31, EP-32), queue pairs per peer (EP-34).

| id | file | shows |
|---|---|---|
`

func table(list []entry) []byte {
	var b bytes.Buffer
	b.WriteString(introduction)
	for _, e := range list {
		shows := e.shows
		if e.open {
			shows += " (no expectation is kept: who sees what depends on timing)"
		}
		fmt.Fprintf(&b, "| %s | `%s.json` | %s |\n", e.id, e.name, shows)
	}
	return b.Bytes()
}
