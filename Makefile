# Every target works with Go, bash, make and git alone. CI runs these same
# targets, so that flags live in one place.

GO        ?= go
BIN       := bin/moerail
FUZZTIME  ?= 10s
BENCHTIME ?= 1s
ROUTING   := testdata/routing/olmoe-1b-7b_book.u8

# The published job: OLMoE-1B-7B, routing of its layer 7, 8 ranks, 128 tokens each.
RUN_FLAGS := --ranks 8 --experts 64 --top-k 8 --hidden 2048 --tokens 128 --dtype bf16 --out-dtype bf16 --routing $(ROUTING):7

# Nothing here is cgo, and one setting lets all targets share what is compiled.
# The race detector alone needs cgo, and with it a C compiler.
export CGO_ENABLED = 0
race race-short: export CGO_ENABLED = 1

.DEFAULT_GOAL := help
.PHONY: help build run test race race-short fuzz lint bench cases mutants bench-peers clean

help: ## this text
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## compile the tool to bin/moerail, without cgo
	$(GO) build -o $(BIN) ./cmd/moerail

run: build ## run and verify rounds of real OLMoE routing on 8 ranks in one process
	$(BIN) run $(RUN_FLAGS)

test: ## every test
	$(GO) test -shuffle=on ./...

race: ## every test under the race detector (needs a C compiler)
	$(GO) test -race -shuffle=on -timeout 30m ./...

race-short: ## the short tests under the race detector, as CI does
	$(GO) test -race -short -shuffle=on -timeout 15m ./...

fuzz: ## every fuzz target for FUZZTIME (10s) each
	@set -e; for pkg in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "== $$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$pkg; \
	  done; done

lint: ## gofmt, go vet, staticcheck, and whether go.mod is tidy
	@out="$$(gofmt -l $$(git ls-files '*.go'))"; if [ -n "$$out" ]; then echo "not gofmt'ed:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) mod tidy -diff

bench: ## every benchmark for BENCHTIME (1s) each
	$(GO) test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) ./...

cases: ## execute every file of testdata/cases and print a line for each
	$(GO) test -count=1 -run '^TestCases$$' -v ./cmd/moerail

mutants: ## break the runtime in some 36 ways, one at a time; the tests must notice each
	$(GO) run ./tools/mutants

bench-peers: build ## rounds of moerail and of Open MPI in turn (needs openmpi-bin, libopenmpi-dev)
	$(GO) run ./bench/peers/compare -tokens 1,128 -turns 5 -out bench/results/mpi-$$(date +%F).json

clean: ## remove what was built
	rm -rf bin
