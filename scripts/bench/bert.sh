#!/usr/bin/env bash
# Measures packed BERT on random weights and random tokens with the row statistics of the MLPerf data (rows of 512, one
# to three sequences a row, two on average, rows nearly full), 48 rows per GPU and step.
#
#   scripts/bench/bert.sh SHAPE STEPS [RANKS [ROWS [--set key=value …]]]
#
#   scripts/bench/bert.sh large 60 1 48 --set precision.compute=fp16 --set precision.loss_scale=1024 --set precision.linear=fp8
#
# SHAPE: large | base | tiny; ROWS: rows per GPU and step (48). Prints the run's log, one summary line (median sequences/s per GPU of all
# steps but the first five and the last two, peak memory) and the profile of one step by kind of kernel. BIN names the folder of the binaries (default
# build/release/bin). PROFILE=0 omits the profile.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/ranks.sh"
shape=$1 steps=$2 ranks=${3:-1} rows=${4:-48}
shift $(( $# < 4 ? $# : 4 ))
work=$(mktemp -d "${TMPDIR:-/tmp}/bert.XXXXXX")
trap 'rm -rf "$work"' EXIT

# DATA: a directory made by make_bert_rows.py on another machine, for machines without h5py.
if [ -n "${DATA:-}" ]; then cp -r "$DATA/." "$work"; else "$python" "$root/scripts/bench/make_bert_rows.py" "$shape" "$((rows * ranks * 4))" "$work"; fi
cat > "$work/run.yaml" <<YAML
model: {path: config.json, init: random}
data: {train: packed, seq_length: $([ "$shape" = tiny ] && echo 64 || echo 512)}
batch: {global_batch_size: $((rows * ranks)), micro_batch_size: $rows, packing_rate: 2}
optimizer: {name: lamb, lr: 9.6e-4, betas: [0.60466, 0.85437], eps: 1.0e-6, weight_decay: 0.1, grad_clip: 1.0}
schedule: {name: linear}
train: {max_steps: $steps, loss: rank_mean}
output: {dir: run}
YAML
profile=()
if [ "${PROFILE:-1}" = 1 ]; then profile=(--set "logging.profile_step=$((steps - 1))"); fi
run_ranks "$ranks" "$bin/train_bert" --config "$work/run.yaml" "${profile[@]}" "$@"
"$python" - "$work/run" "$ranks" "$steps" <<'PY'
import json, statistics, sys
run, ranks, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
lines = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
train = [l for l in lines if l["event"] == "train"]
steps = [l for l in train[5:] if l["step"] < count - 1]
if steps:
    rates = sorted(l["samples_per_s"] / ranks for l in steps)
    times = sorted(l["step_time_s"] * 1e3 for l in steps)
    print(f"summary: {len(steps)} steps, median {statistics.median(times):.2f} ms a step ({times[0]:.2f} to {times[-1]:.2f}), "
          f"{statistics.median(rates):.1f} sequences/s per GPU, mfu {statistics.median(l['mfu'] or 0 for l in steps):.3f}, "
          f"peak {max(l['memory_gib'] for l in steps):.1f} GiB, loss {train[0]['loss']:.4f} -> {train[-1]['loss']:.4f}")
PY
if [ "${PROFILE:-1}" = 1 ]; then "$bin/trireme" profile summarise "$work/run/profile"; fi
