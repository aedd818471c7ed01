#!/usr/bin/env bash
# Seconds from exec to the end of the first step, weights read from a warm page cache.
#
#   scripts/bench/startup.sh MODEL_DIRECTORY [RANKS [--set key=value …]]
#
# The directory may come from scripts/bench/make_checkpoint.py. BIN names the folder of the binaries (default build/release/bin).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/ranks.sh"
model=$(realpath "$1") ranks=${2:-1}
shift $(( $# < 2 ? $# : 2 ))
work=$(mktemp -d "${TMPDIR:-/tmp}/startup.XXXXXX")
trap 'rm -rf "$work"' EXIT
"$python" -c "import numpy as np, sys; np.save(sys.argv[1], np.random.default_rng(0).integers(3, 32000, size=(16, 2048)).astype(np.int32))" "$work/train.npy"
cat > "$work/run.yaml" <<YAML
model: {path: $model}
lora: {r: 16, alpha: 32, dropout: 0.1, target_modules: [qkv_proj, o_proj]}
data: {train: train.npy, seq_length: 2048}
batch: {global_batch_size: $ranks, micro_batch_size: 1}
train: {max_steps: 2}
output: {dir: run}
YAML
begin=${EPOCHREALTIME/./}
run_ranks "$ranks" "$bin/train_llama" --config "$work/run.yaml" "$@" 2>&1 | while IFS= read -r line; do
  milliseconds=$(( (${EPOCHREALTIME/./} - begin) / 1000 ))
  printf '%4d.%03d s  %s\n' $(( milliseconds / 1000 )) $(( milliseconds % 1000 )) "$line"
done | grep -E "Trireme|loading|loaded|step [12]/|wrote|rror"
