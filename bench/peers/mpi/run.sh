#!/bin/bash
# Builds and runs moe_a2a_mpi, the MPI peer of moerail's round.
#
#   run.sh build                            compile into build/
#   run.sh launch TRANSPORT RANKS [ARGS]    one run; ARGS go to moe_a2a_mpi
#   run.sh all [OUT.csv]                    the standard cases over every transport
#   run.sh best OUT.csv                     the fastest transport of each case in such a file
#   run.sh copybw                           memory copy bandwidth of this machine
#
# Transports, all inside this machine:
#   vader       Open MPI's own shared memory, large messages in one copy (CMA)
#   vader-copy  the same, copied in and out of shared fragments
#   ucx         UCX shared memory
#   tcp         the loopback interface
#
# Variables for "all": RANKS TOKENS TRANSPORTS CASES REPEAT (see below).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$here/build
hint='Open MPI is missing. On Debian or Ubuntu: apt-get install openmpi-bin libopenmpi-dev'
find_tool() { command -v "$1.openmpi" || command -v "$1" || { echo "run.sh: no $1: $hint" >&2; exit 2; }; }

do_build() {
  local mpicc flags
  mpicc=$(find_tool mpicc)
  mkdir -p "$build"
  flags=(-O3 -march=native -Wall -Wextra)
  grep -qsw avx512bw /proc/cpuinfo && flags+=(-mprefer-vector-width=512)
  if [ ! "$build/moe_a2a_mpi" -nt "$here/moe_a2a_mpi.c" ]; then
    "$mpicc" "${flags[@]}" -fopt-info-vec-optimized="$build/vectorised.txt" -o "$build/moe_a2a_mpi" "$here/moe_a2a_mpi.c" -lm
    # the eight sums must be vector loops, or the peer is handicapped
    local line
    line=$(grep -n "switch (n) { SUM" "$here/moe_a2a_mpi.c" | cut -d: -f1)
    [ "$(grep -E "moe_a2a_mpi.c:$line:[0-9]+: optimized: +loop vectorized" "$build/vectorised.txt" | cut -d: -f3 | sort -u | wc -l)" -eq 8 ] ||
      echo "run.sh: warning: the compiler did not vectorise all sums; the MPI figures are too slow" >&2
  fi
  [ "$build/copybw" -nt "$here/copybw.c" ] || "${CC:-cc}" "${flags[@]}" -pthread -o "$build/copybw" "$here/copybw.c"
}

# With more ranks than cores a waiting rank must give its core away; with enough
# cores it spins, bound to one. Both are what serves MPI best.
do_launch() {
  local transport=$1 ranks=$2 place
  shift 2
  local mpirun
  mpirun=$(find_tool mpirun)
  if [ "$ranks" -gt "$(nproc)" ]; then
    place=(--oversubscribe --bind-to none --mca mpi_yield_when_idle 1)
  else
    place=(--bind-to core --mca mpi_yield_when_idle 0)
  fi
  local run=("$mpirun" --mca oob_tcp_if_include lo "${place[@]}" -np "$ranks")
  [ "$(id -u)" -ne 0 ] || run+=(--allow-run-as-root)
  case $transport in
    vader) run+=(--mca pml ob1 --mca btl self,vader) ;;
    vader-copy) run+=(--mca pml ob1 --mca btl self,vader --mca btl_vader_single_copy_mechanism none) ;;
    ucx) run+=(--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=self,sm -x UCX_NET_DEVICES=lo) ;;
    tcp) run+=(--mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include lo) ;;
    *) echo "run.sh: unknown transport $transport: want vader, vader-copy, ucx or tcp" >&2; exit 2 ;;
  esac
  exec "${run[@]}" "$build/moe_a2a_mpi" "$@"
}

do_all() {
  local out=${1:-/dev/stdout} tmp transport ranks tokens case rounds i
  RANKS=${RANKS:-8} TOKENS=${TOKENS:-1 128} TRANSPORTS=${TRANSPORTS:-vader vader-copy ucx} REPEAT=${REPEAT:-3}
  CASES=${CASES:-"-m dedup -l rows;-m dedup -l rows -p;-m dedup -l grouped;-m dedup -l grouped -p;-m per_expert -l rows;-m per_expert -l grouped"}
  tmp=$(mktemp -d)
  trap "rm -rf '$tmp'" EXIT
  echo "transport,args,ranks,tokens,hidden,topk,experts,dtype,mode,layout,step,p50_us,p90_us,p99_us,min_us,max_us" > "$tmp/csv"
  for ((i = 0; i < REPEAT; i++)); do # turns, so that a noisy minute hits every variant alike
    for ranks in $RANKS; do for tokens in $TOKENS; do
      rounds=$((tokens <= 4 ? 1000 : tokens <= 32 ? 300 : 40))
      while IFS= read -r -d ';' case; do for transport in $TRANSPORTS; do
        # shellcheck disable=SC2086
        if timeout 120 "$0" launch "$transport" "$ranks" -t "$tokens" -i "$rounds" -w 5 $case < /dev/null > "$tmp/one" 2> "$tmp/err"; then
          grep -E '^[0-9]' "$tmp/one" | sed "s/^/$transport,$case,/" >> "$tmp/csv"
        else
          echo "run.sh: failed: $transport, $ranks ranks, $tokens tokens, $case: $(tail -n 3 "$tmp/err" | tr '\n' ' ')" >&2
        fi
      done; done <<< "$CASES;"
    done; done
  done
  cat "$tmp/csv" > "$out"
}

# the median of the repetitions' p50 for each variant, then the best variant of each case
do_best() {
  awk -F, 'NR > 1 && ($11 == "dispatch" || $11 == "combine" || $11 == "round") {
      v = $3 "," $4 "," $9 "," $10 "|" $1 "|" $2; n[v "|" $11]++; x[v "|" $11, n[v "|" $11]] = $12; seen[v] = 1 }
    function median(key,  i, j, t, m) { m = n[key]
      for (i = 1; i <= m; i++) for (j = i + 1; j <= m; j++) if (x[key, i] + 0 > x[key, j] + 0) { t = x[key, i]; x[key, i] = x[key, j]; x[key, j] = t }
      return x[key, int((m + 1) / 2)] }
    END { for (v in seen) { split(v, a, "|"); r = median(v "|round"); if (!(a[1] in best) || r + 0 < best[a[1]] + 0) { best[a[1]] = r; who[a[1]] = v } }
      print "ranks,tokens,mode,layout,transport,args,dispatch_p50_us,combine_p50_us,round_p50_us"
      for (c in best) { v = who[c]; split(v, a, "|"); print c "," a[2] "," a[3] "," median(v "|dispatch") "," median(v "|combine") "," best[c] | "sort -t, -k2n -k3 -k4" } }' "$1"
}

case ${1:-} in
  build) do_build ;;
  launch) [ $# -ge 3 ] || { echo "usage: run.sh launch TRANSPORT RANKS [ARGS]" >&2; exit 2; }; shift; do_build; do_launch "$@" ;;
  all) do_build; do_all "${2:-}" ;;
  best) [ $# -eq 2 ] || { echo "usage: run.sh best OUT.csv" >&2; exit 2; }; do_best "$2" ;;
  copybw) do_build; exec "$build/copybw" ;;
  *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2 ;;
esac
