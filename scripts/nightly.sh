#!/usr/bin/env bash
# Builds with sanitizers and runs what can find something with them:
#
#   debug   address and undefined-behaviour sanitizers: tests of one process, tests of several ranks, fuzzers. Also compiles
#           every public header as a file of its own
#   tsan    thread sanitizer: tests of one process, tests of several ranks
#
#   scripts/nightly.sh [--minutes N] [debug|tsan ...]
#
# Each kind of tests gets N minutes (10) in random order; what did not start or end in that time is counted, not a failure.
# Ends with 1 if a test failed. CPU only: the sanitizers do not see device code.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh

minutes=10
if [ "${1:-}" = --minutes ]; then
  minutes=${2:?--minutes needs a number}
  shift 2
fi
if [ $# -eq 0 ]; then set -- debug tsan; fi
for preset in "$@"; do
  case $preset in debug | tsan) ;; *) fail "unknown preset $preset: debug or tsan" ;; esac
done

setup_all
# The program's own handlers of signals are under test.
signals=handle_segv=0:handle_sigbus=0:handle_abort=0:handle_sigfpe=0:handle_sigill=0
# Leaks: LibTorch, MPI and the tests' processes that end by a signal release nothing at their end. Allocations that fail
# are under test.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=1:$signals}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
# Libraries that are not instrumented call pthread_mutex_unlock of mutexes whose lock was not seen.
export TSAN_OPTIONS=${TSAN_OPTIONS:-allocator_may_return_null=1:halt_on_error=1:report_mutex_bugs=0:suppressions=$PWD/scripts/tsan.supp:$signals}

status=0
# run PRESET NAME ctest-arguments…
run() {
  local preset=$1 name=$2 log=build/$1/nightly-$2.log late end none='Skipped|Not Run'
  end=$((SECONDS + 60 * minutes))
  shift 2
  progress "$preset: $name"
  "$(dirname "$trireme_cmake")/ctest" --test-dir "build/$preset" --output-on-failure --no-tests=error --schedule-random -j "$(nproc)" \
    --stop-time "$(date -d "+$minutes minutes" +%H:%M:%S)" "$@" >"$log" 2>&1 || true
  # ctest ends what still runs at that time.
  if [ "$SECONDS" -ge $((end - 1)) ]; then none+='|Timeout'; fi
  late=$(grep -cE '\*\*\*Not Run|^ *[0-9]+/.*\*\*\*Timeout' "$log" || true)
  if grep -E '^Could not find executable|^ *[0-9]+/[0-9]+ Test .*\*\*\*' "$log" | grep -Ev "\*\*\*($none)"; then
    status=1
    progress "$preset: $name: failures above, output in $log"
  elif ! grep -q 'Passed' "$log"; then
    status=1
    tail -n 20 "$log"
    progress "$preset: $name: no test ran"
  fi
  progress "$preset: $name: $(grep -c ' Passed ' "$log" || true) passed, $late did not end in $minutes minutes"
}

for preset in "$@"; do
  TRIREME_CUDA=OFF build_preset "$preset"
  run "$preset" unit -L '^cpu$' -LE '^slow$'
  run "$preset" multi -L '^multi$' -LE '^slow$'
  if [ "$preset" = debug ]; then
    run "$preset" fuzz -R '^fuzz'
    TRIREME_CUDA=OFF build_preset "$preset" headers
  fi
done
exit "$status"
