#!/usr/bin/env bash
# Measures speed and memory of Llama LoRA on random weights and random tokens; with --set lora=null of training all
# parameters.
#
#   scripts/bench/llama_lora.sh SHAPE SEQ MICRO_BATCH GLOBAL_BATCH STEPS [RANKS [--set key=value …]]
#
# SHAPE: 7b | 13b | 34b | 70b | 70b40 (half its blocks) | 8b (Llama 3) | qwen14b (Qwen2.5) | tiny. Prints the run's log and one summary line: median tokens/s and samples/s per GPU of all
# steps but the first WARMUP (3), peak memory. BIN names the folder of the binaries (default build/release/bin); METRICS
# a file to copy metrics.jsonl to.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/ranks.sh"
shape=$1 seq=$2 micro=$3 global=$4 steps=$5 ranks=${6:-1}
shift $(( $# < 6 ? $# : 6 ))
work=$(mktemp -d "${TMPDIR:-/tmp}/llama_lora.XXXXXX")
trap 'rm -rf "$work"' EXIT

"$python" - "$shape" "$seq" "$global" "$steps" "$work" <<'PY'
import json, sys
import numpy as np
shape, seq, gbs, steps, work = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
shapes = {"tiny": (256, 688, 4, 8, 4), "7b": (4096, 11008, 32, 32, 32), "13b": (5120, 13824, 40, 40, 40),
          "34b": (8192, 22016, 48, 64, 8), "70b": (8192, 28672, 80, 64, 8), "70b40": (8192, 28672, 40, 64, 8),
          "8b": (4096, 14336, 32, 32, 8), "qwen14b": (5120, 13824, 48, 40, 8)}
hidden, ffn, layers, heads, kv = shapes[shape]
vocab = {"8b": 128256, "qwen14b": 152064}.get(shape, 32000)
family = ("Qwen2ForCausalLM", "qwen2") if shape.startswith("qwen") else ("LlamaForCausalLM", "llama")
json.dump(dict(architectures=[family[0]], model_type=family[1], hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=layers,
               num_attention_heads=heads, num_key_value_heads=kv, vocab_size=vocab, max_position_embeddings=8192, rms_norm_eps=1e-5,
               hidden_act="silu", tie_word_embeddings=False, initializer_range=0.02), open(f"{work}/config.json", "w"))
np.save(f"{work}/train.npy", np.random.default_rng(0).integers(3, 32000, size=(gbs * min(steps, 4), seq)).astype(np.int32))
PY
cat > "$work/run.yaml" <<YAML
model: {path: ., init: random}
lora: {r: 16, alpha: 32, dropout: 0.1, target_modules: [q_proj, k_proj, v_proj, o_proj]}
data: {train: train.npy, seq_length: $seq}
batch: {global_batch_size: $global, micro_batch_size: $micro}
train: {max_steps: $steps}
output: {dir: run}
YAML
run_ranks "$ranks" "$bin/train_llama" --config "$work/run.yaml" "$@"
if [ -n "${METRICS:-}" ]; then cp "$work/run/metrics.jsonl" "$METRICS"; fi
"$python" - "$work/run/metrics.jsonl" "$ranks" "${WARMUP:-3}" <<'PY'
import json, statistics, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
ranks, warmup = int(sys.argv[2]), int(sys.argv[3])
train = [l for l in lines if l["event"] == "train"]
steps = train[min(warmup, len(train) - 1):]
median = lambda key: statistics.median(l[key] for l in steps)
mfu = f"{median('mfu'):.3f}" if steps and steps[0]["mfu"] is not None else "n/a"
print(f"summary: {len(steps)} steps, median step {median('step_time_s') * 1e3:.1f} ms, {median('tokens_per_s') / ranks:.0f} tokens/s/GPU, "
      f"{median('samples_per_s') / ranks:.4f} samples/s/GPU, mfu {mfu}, peak {max(l['memory_gib'] for l in steps):.1f} GiB, "
      f"loss {train[0]['loss']:.4f} -> {steps[-1]['loss']:.4f}")
PY
