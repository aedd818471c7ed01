#!/usr/bin/env bash
# Measures GPT-3 pre-training on random weights and Megatron's mock data, dropout 0.1, rows of 2,048 tokens.
#
#   scripts/bench/gpt.sh SIZE MICRO_BATCH GLOBAL_BATCH STEPS [RANKS [--set key=value …]]
#
#   scripts/bench/gpt.sh 126m 32 256 20 2
#   scripts/bench/gpt.sh 5b 8 16 12 2 --set precision.linear=fp8
#
# SIZE: a preset of `trireme init-model` behind gpt3- (126m, 350m, … 20b), or tiny. Prints the run's log and one summary line: median
# tokens/s per GPU of all steps but the first WARMUP (4), peak memory, first and last loss. BIN names the folder of the binaries (default
# build/release/bin). LAUNCH=env: see ranks.sh.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/ranks.sh"
if [ $# -lt 4 ]; then sed -n '4p' "${BASH_SOURCE[0]}" >&2; exit 2; fi
size=$1 micro=$2 global=$3 steps=$4 ranks=${5:-1}
shift $(( $# < 5 ? $# : 5 ))
work=$(mktemp -d "${TMPDIR:-/tmp}/gpt.XXXXXX")
trap 'rm -rf "$work"' EXIT

"$python" - "$size" "$work" <<'PY'
import json, sys
layers, hidden, heads, deviation = {"tiny": (2, 128, 4, 0.02), "126m": (12, 768, 12, 0.023), "350m": (24, 1024, 16, 0.02), "760m": (24, 1536, 16, 0.01633),
                                    "1.3b": (24, 2048, 16, 0.014142), "2.7b": (32, 2560, 32, 0.012649), "5b": (24, 4096, 32, 0.01),
                                    "6.7b": (32, 4096, 32, 0.01), "13b": (40, 5120, 40, 0.008944), "20b": (44, 6144, 48, 0.008165)}[sys.argv[1]]
json.dump(dict(architectures=["GPT2LMHeadModel"], model_type="gpt2", n_embd=hidden, n_layer=layers, n_head=heads, n_inner=4 * hidden, n_positions=2048,
               vocab_size=50257, activation_function="gelu_new", layer_norm_epsilon=1e-5, initializer_range=deviation, embd_pdrop=0.1,
               attn_pdrop=0.1, resid_pdrop=0.1, bos_token_id=50256, eos_token_id=50256, torch_dtype="bfloat16"), open(f"{sys.argv[2]}/config.json", "w"))
PY
cat > "$work/run.yaml" <<YAML
model: {path: ., init: random}
data: {train: mock, seq_length: 2048}
batch: {global_batch_size: $global, micro_batch_size: $micro}
optimizer: {lr: 3.0e-4}
schedule: {warmup_steps: 5}
train: {max_steps: $steps}
output: {dir: run}
YAML
run_ranks "$ranks" "$bin/train_gpt" --config "$work/run.yaml" "$@"
"$python" - "$work/run/metrics.jsonl" "$ranks" "${WARMUP:-4}" <<'PY'
import json, statistics, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
ranks, warmup = int(sys.argv[2]), int(sys.argv[3])
train = [line for line in lines if line["event"] == "train"]
steps = train[min(warmup, len(train) - 1):]
step = statistics.median(line["step_time_s"] for line in steps)
tokens = (train[-1]["tokens"] - train[0]["tokens"]) / (len(train) - 1)
print(f"summary: {len(steps)} steps, median step {step * 1e3:.1f} ms, {tokens / step / ranks:.0f} tokens/s/GPU, "
      f"mfu {statistics.median(line['mfu'] or 0 for line in steps):.3f}, peak {max(line['memory_gib'] for line in steps):.1f} GiB, "
      f"loss {train[0]['loss']:.4f} -> {train[-1]['loss']:.4f}")
PY
