#!/usr/bin/env bash
# Speed of our CUDA kernels on the GPU of this machine: builds the bench, prints its table, writes JSON.
#
#   scripts/bench/kernels.sh [--json FILE] [--filter TEXT] [--torch]
#
# TB/s counts each input read once and each output written once; several sets of buffers rotate, so that inputs are not
# in L2; medians of 15 batches. --torch also times LibTorch's operations in the same process (needs the whole project's
# build in BUILD, default build/release; without it the kernels build on their own in build/kernels, for which nvcc and
# GoogleTest suffice). --filter: operations whose name contains TEXT. FILE defaults to build/kernels.json.
set -euo pipefail
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
json=$root/build/kernels.json
filter=()
torch=0
while (( $# )); do
  case $1 in
    --json) json=$2; shift 2 ;;
    --filter) filter=(--filter "$2"); shift 2 ;;
    --torch) torch=1; shift ;;
    *) sed -n '4p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
done
cmake=$(if [ -x "$root/.venv/bin/cmake" ]; then echo "$root/.venv/bin/cmake"; else command -v cmake; fi)
if (( torch )); then
  build=${BUILD:-$root/build/release}
  target=kernel_bench_torch
  [ -f "$build/CMakeCache.txt" ] || { echo "kernels.sh: no build in $build: run scripts/setup.sh first, or set BUILD" >&2; exit 2; }
else
  build=$root/build/kernels
  target=kernel_bench
  [ -f "$build/CMakeCache.txt" ] || "$cmake" -S "$root/kernels" -B "$build" -G Ninja -DTRIREME_TESTS=OFF
fi
"$cmake" --build "$build" --target "$target"
"$build/bin/$target" --json "$json" "${filter[@]}"
echo "written to $json"
