#!/usr/bin/env bash
# Compares the final loss with frozen weights in FP8 and in four bits (NF4) with that in the compute dtype: a small Llama
# is pre-trained on one text, then LoRA is trained on another until its evaluation loss no longer falls, once with each.
# Prints the curves and the differences of the last evaluations; exit code 1 if FP8's is more than 0.5 %.
#
#   scripts/bench/fp8_convergence.sh PRETRAIN.txt TUNE.txt [--set key=value …]      (--set goes to all LoRA runs)
#
# BIN names the folder of the binaries (default build/release/bin), PRETRAIN_STEPS (300) and STEPS (240) the lengths. Meant for a GPU, where it
# takes about a minute: some 27 million parameters, 32 rows of 256 tokens a step. WORK keeps the files.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/ranks.sh"
if [ $# -lt 2 ]; then sed -n '6p' "${BASH_SOURCE[0]}" >&2; exit 2; fi
pretrain=$1 tune=$2 steps=${STEPS:-240}
shift 2
if [ -n "${WORK:-}" ]; then work=$WORK; mkdir -p "$work"
else work=$(mktemp -d "${TMPDIR:-/tmp}/fp8_convergence.XXXXXX"); trap 'rm -rf "$work"' EXIT; fi

"$bin/trireme" tokenizer train --input "$pretrain" --vocab-size 4096 --output "$work/tokenizer.model" 2> "$work/tokenizer.log" ||
  { tail -n 5 "$work/tokenizer.log" >&2; exit 1; }
pack() { "$bin/trireme" data pack --tokenizer "$work/tokenizer.model" --input "$1" --seq-length 256 --bos --output "$work/$2.npy" \
  --valid-output "$work/$2-valid.npy" --valid-fraction 0.1; }
pack "$pretrain" pretrain
pack "$tune" tune
"$bin/trireme" init-model --hidden-size 512 --intermediate-size 1408 --layers 8 --heads 8 --kv-heads 4 --vocab-size 4096 \
  --max-positions 256 --tokenizer "$work/tokenizer.model" --output "$work/random-model"
cat > "$work/pretrain.yaml" <<YAML
model: {path: random-model}
data: {train: pretrain.npy, valid: pretrain-valid.npy, seq_length: 256}
batch: {global_batch_size: 32, micro_batch_size: 32}
optimizer: {lr: 1.0e-3, betas: [0.9, 0.95], weight_decay: 0.1, grad_clip: 1.0}
schedule: {name: cosine, warmup_steps: 50, min_lr: 1.0e-4}
train: {max_steps: ${PRETRAIN_STEPS:-300}, loss: token_mean}
eval: {every_samples: 1600}
logging: {every_steps: 100}
output: {dir: pretrain}
YAML
cat > "$work/lora.yaml" <<YAML
model: {path: pretrain/model}
lora: {r: 16, alpha: 32, dropout: 0.05, target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]}
data: {train: tune.npy, valid: tune-valid.npy, seq_length: 256}
batch: {global_batch_size: 32, micro_batch_size: 32}
optimizer: {lr: 5.0e-4, weight_decay: 1.0e-4, grad_clip: 0.3}
schedule: {name: cosine, warmup_steps: 10}
train: {max_steps: $steps, loss: token_mean}
eval: {every_samples: $(( 32 * steps / 10 ))}
logging: {every_steps: 100}
YAML
echo "== pre-training"
"$bin/train_llama" --config "$work/pretrain.yaml" > "$work/pretrain.log" 2>&1 || { tail -n 5 "$work/pretrain.log" >&2; exit 1; }
grep -E "^eval" "$work/pretrain.log" | tail -n 2
for frozen in compute fp8 nf4; do
  echo "== precision.frozen: $frozen"
  "$bin/train_llama" --config "$work/lora.yaml" --set "output.dir=$frozen" --set "precision.frozen=$frozen" "$@" > "$work/$frozen.log" 2>&1 ||
    { tail -n 5 "$work/$frozen.log" >&2; exit 1; }
  grep -E "^eval" "$work/$frozen.log"
done
"$python" - "$work" <<'PY'
import json, sys
kinds = ("compute", "fp8", "nf4")
curves = {}
for kind in kinds:
    lines = [json.loads(line) for line in open(f"{sys.argv[1]}/{kind}/metrics.jsonl")]
    curves[kind] = [line["loss"] for line in lines if line["event"] == "eval"]
plain = curves["compute"]
print(f"compute dtype: evaluation loss {plain[0]:.5f} at the first evaluation, {plain[-1]:.5f} at the end; "
      f"the last tenth of the run changed it by {plain[-1] / plain[-2] - 1:+.3%}")
for kind in kinds[1:]:
    print(f"{kind}: {curves[kind][0]:.5f}, {curves[kind][-1]:.5f}: {curves[kind][-1] / plain[-1] - 1:+.3%}")
sys.exit(abs(curves["fp8"][-1] / plain[-1] - 1) > 0.005)
PY
