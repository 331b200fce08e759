#!/usr/bin/env bash
# Installs what the fabrics behind cgo and the race detector need, as far as it is
# missing: a C compiler, libfabric and libibverbs with their headers. Debian, as
# root. A build without them works, and has loopback and shm.
set -euo pipefail

read -ra flags <<<"$(go env CGO_CFLAGS)"
compiles() { "$(CGO_ENABLED=1 go env CC)" "${flags[@]}" -fsyntax-only -include "$1" -x c /dev/null 2>/dev/null; }

missing=()
compiles stdlib.h || missing+=(gcc libc6-dev)
compiles rdma/fi_rma.h || missing+=(libfabric-dev)
compiles infiniband/verbs.h || missing+=(libibverbs-dev ibverbs-providers)
if [ ${#missing[@]} -eq 0 ]; then
	echo "nothing is missing"
	exit
fi
if ! type -P apt-get >/dev/null; then
	echo "needed, and there is no apt-get to install it; Debian's names: ${missing[*]}" >&2
	exit 1
fi
apt-get update -q
apt-get install -q -y --no-install-recommends "${missing[@]}"
