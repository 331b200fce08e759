# Every target works with Go, bash, make and git alone. CI runs these same
# targets, so that flags live in one place.
#
# TAGS are the fabrics behind cgo that are compiled in, as libfabric,verbs. Those
# whose headers a C compiler finds are, unless TAGS is given: `make TAGS= test` is
# the pure Go build.

GO        ?= go
BIN       := bin/moerail
FUZZTIME  ?= 10s
BENCHTIME ?= 1s
ROUTING   := testdata/routing/olmoe-1b-7b_book.u8

# The published job: OLMoE-1B-7B, routing of its layer 7, 8 ranks, 128 tokens each.
RUN_FLAGS := --ranks 8 --experts 64 --top-k 8 --hidden 2048 --tokens 128 --dtype bf16 --out-dtype bf16 --routing $(ROUTING):7

# finds says yes if a compiler that is called as cgo would takes the header.
# CGO_CFLAGS may say where headers are that stand in no usual place.
cc := $(shell $(GO) env CC)
finds = $(shell $(cc) $$($(GO) env CGO_CFLAGS) -fsyntax-only -include $(1) -x c /dev/null >/dev/null 2>&1 && echo yes)
comma := ,
space := $(subst x,,x x)

ifeq ($(origin TAGS),undefined)
has_libfabric := $(call finds,rdma/fi_rma.h)
has_verbs     := $(call finds,infiniband/verbs.h)
TAGS := $(subst $(space),$(comma),$(strip $(if $(has_libfabric),libfabric) $(if $(has_verbs),verbs)))
found := headers by $(cc): libfabric $(or $(has_libfabric),no), libibverbs $(or $(has_verbs),no); make setup installs what is missing
else
found := as given
endif
tagged := $(if $(TAGS),-tags $(TAGS))

# A build without tags is pure Go. One setting lets all targets share what is
# compiled; the race detector alone needs cgo, and a C compiler, whatever the tags.
export CGO_ENABLED = $(if $(TAGS),1,0)
race race-short: export CGO_ENABLED = 1

# What the tags change: the fabrics and the command.
FABRICS := ./internal/fabric/... ./internal/ibv/... ./transport/efa/... ./transport/verbs/... ./cmd/...

.DEFAULT_GOAL := help
.PHONY: help setup build run test test-fabrics test-hosts race race-short fuzz lint bench cases mutants bench-peers clean

help: ## this text
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo 'TAGS: $(or $(TAGS),none, pure Go) ($(found))'

setup: ## install a C compiler, libfabric and libibverbs with their headers (Debian, as root), where missing
	bash tools/setup.sh

build: ## compile the tool to bin/moerail, with the fabrics whose headers are here
	$(GO) build $(tagged) -o $(BIN) ./cmd/moerail

run: build ## run and verify rounds of real OLMoE routing on 8 ranks in one process
	$(BIN) run $(RUN_FLAGS)

test: ## every test
	$(GO) test $(tagged) -shuffle=on ./...

test-fabrics: ## the tests of what the tags change: the fabrics behind cgo, and the command
	$(GO) test $(tagged) -shuffle=on $(FABRICS)

test-hosts: ## ranks on two "hosts": network namespaces with a link between them (as root, needs ip; tc for delay and loss)
	MOERAIL_TEST_HOSTS=1 $(GO) test $(tagged) -count=1 -v -run '^TestTwoHosts' ./cmd/moerail

race: ## every test under the race detector (needs a C compiler)
	$(GO) test $(tagged) -race -shuffle=on -timeout 30m ./...

race-short: ## the short tests under the race detector, as CI does
	$(GO) test $(tagged) -race -short -shuffle=on -timeout 15m ./...

fuzz: ## every fuzz target for FUZZTIME (10s) each
	@set -e; for pkg in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "== $$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$pkg; \
	  done; done

# Over both builds staticcheck calls unused what neither uses; what only the tagged
# one uses cannot be told from the pure one alone.
lint: ## gofmt, go vet and staticcheck without and with the tags, and whether go.mod is tidy
	@out="$$(gofmt -l $$(git ls-files '*.go'))"; if [ -n "$$out" ]; then echo "not gofmt'ed:"; echo "$$out"; exit 1; fi
	CGO_ENABLED=0 $(GO) vet ./...
	$(if $(TAGS),$(GO) vet $(tagged) ./...)
	$(if $(TAGS),printf 'pure: CGO_ENABLED=0\ntagged: CGO_ENABLED=1 -tags=$(TAGS)\n' | $(GO) tool staticcheck -matrix ./...,$(GO) tool staticcheck -checks inherit$(comma)-U1000 ./...)
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

.PHONY: bench-raw bench-peers-tcp
bench-raw: build ## writes of moerail and of raw libfabric in turn, over TCP and shared memory
	$(MAKE) --no-print-directory -C bench/peers raw-fabric
	$(GO) run ./bench/peers/comparewrite -fabric libfabric:tcp -out bench/results/write-tcp-$$(date +%F).json
	$(GO) run ./bench/peers/comparewrite -fabric libfabric:shm -out bench/results/write-shm-$$(date +%F).json

bench-peers-tcp: build ## rounds of moerail over libfabric's TCP and of Open MPI's in turn
	$(GO) run ./bench/peers/compare -tokens 1,128 -turns 5 -copybw=false -transports tcp -forms libfabric:tcp -out bench/results/mpi-tcp-$$(date +%F).json

.PHONY: vm-suite
vm-suite: ## the verbs fabric in a VM with software RDMA (Debian; installs QEMU where missing); exit status 77: no VM here
	@tools/vm-suite
