#!/usr/bin/env bash
# Sets up, builds, and runs every test that this machine can run.
#
#   scripts/test.sh [--cpu-kinds] [ctest arguments]     e.g. -L parity, -R config_test, -N
#
# --cpu-kinds then repeats the tests that compute (label "numeric") with LibTorch's kernels for CPUs with AVX2 and for
# those without, which sum in other orders.
#
# Without -L or -LE, tests with the label "slow" are not run, nor those with "gpu" or "multigpu" on a machine without a
# GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh

cpu_kinds=("")
if [ "${1:-}" = --cpu-kinds ]; then
  cpu_kinds=("" avx2 default)
  shift
fi

started=$SECONDS
setup_all
TRIREME_PYTHON=$trireme_python scripts/format.sh --check || fail "the sources are not formatted: run scripts/format.sh"
built_from=$SECONDS
build_release
tested_from=$SECONDS

labels=(-LE '^(slow|gpu|multigpu)$')
jobs=$(($(nproc) > 8 ? 9 : $(nproc) + 1))  # one more than cores: some tests wait for Slurm
if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
  labels=(-LE '^slow$')
  jobs=2  # tests share the GPU's memory
fi
for argument in "$@"; do
  case $argument in -L | -L?* | --label-regex* | --label-exclude*) labels=() ;; esac
done

status=0 repeated=()
for kind in "${cpu_kinds[@]}"; do
  if [ -n "$kind" ]; then
    printf 'ATEN_CPU_CAPABILITY=%s\n' "$kind"
    # oneDNN and MKL choose by themselves.
    case $kind in
      avx2) export ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 ;;
      *) export ATEN_CPU_CAPABILITY=$kind ONEDNN_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 ;;
    esac
    repeated=(-L '^numeric$' --no-tests=ignore)
  fi
  "$(dirname "$trireme_cmake")/ctest" --test-dir build/release --output-on-failure --no-tests=error -j "$jobs" \
    ${labels[@]+"${labels[@]}"} ${repeated[@]+"${repeated[@]}"} "$@" || status=$?
done
printf 'set-up %d s, build %d s, tests %d s\n' $((built_from - started)) $((tested_from - built_from)) $((SECONDS - tested_from))
exit "$status"
