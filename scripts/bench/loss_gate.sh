#!/usr/bin/env bash
# Compares the training loss of FP8 recipes with that of bf16: a Llama of 104 million parameters from equal initial
# weights on equal rows, once with each, and once more in bf16 with another micro-batch, which changes only how sums are
# rounded and so shows the spread between equal runs. Meant for a GPU: about 80 s a run.
#
#   scripts/bench/loss_gate.sh ROWS.npy [SEED] [RUN …]        RUN: bf16-again rowwise tensorwise delayed delayed-skip1 …
#
# ROWS.npy: token ids below 8,192 in rows of 1,024, the last 512 of which are evaluated. RECIPE-skipN keeps N blocks at
# either end in bf16. BIN names the folder of the binaries (default build/release/bin), STEPS (2000) the length, WORK
# keeps the files. Prints a line a run; prints and writes WORK/SEED.json for scripts/bench/curves.py.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/ranks.sh"
if [ $# -lt 1 ]; then sed -n '6p' "${BASH_SOURCE[0]}" >&2; exit 2; fi
rows=$1 seed=${2:-1234} steps=${STEPS:-2000}
shift $(( $# < 2 ? $# : 2 ))
[ $# -gt 0 ] || set -- bf16-again rowwise tensorwise delayed
if [ -n "${WORK:-}" ]; then work=$WORK; mkdir -p "$work"
else work=$(mktemp -d "${TMPDIR:-/tmp}/loss_gate.XXXXXX"); trap 'rm -rf "$work"' EXIT; fi

"$python" - "$rows" "$work" <<'PY'
import json, sys
import numpy as np
rows, work = np.load(sys.argv[1]), sys.argv[2]
np.save(f"{work}/train.npy", rows[:-512])
np.save(f"{work}/valid.npy", rows[-512:])
json.dump(dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=768, intermediate_size=2304, num_hidden_layers=12,
               num_attention_heads=12, num_key_value_heads=12, vocab_size=8192, max_position_embeddings=2048, rms_norm_eps=1e-5,
               hidden_act="silu", tie_word_embeddings=False, initializer_range=0.02), open(f"{work}/config.json", "w"))
PY
cat > "$work/run.yaml" <<YAML
model: {path: ., init: random}
data: {train: train.npy, valid: valid.npy, seq_length: 1024}
batch: {global_batch_size: 24, micro_batch_size: 24}
optimizer: {lr: 6.0e-4, betas: [0.9, 0.95], weight_decay: 0.1, grad_clip: 1.0}
schedule: {name: cosine, warmup_steps: 100}
train: {max_steps: $steps, loss: token_mean, seed: $seed}
eval: {every_samples: $(( 24 * steps / 4 ))}
output: {dir: unused, save_on_stop: false}
YAML
for run in bf16 "$@"; do
  options=(--set "output.dir=$seed-$run")
  case $run in
    bf16) ;;
    bf16-again) options+=(--set batch.micro_batch_size=8) ;;
    *) options+=(--set precision.linear=fp8 --set "precision.fp8_recipe=${run%-skip*}")
       if [[ $run == *-skip* ]]; then
         options+=(--set "precision.fp8_skip_first=${run##*-skip}" --set "precision.fp8_skip_last=${run##*-skip}")
       fi ;;
  esac
  "$bin/train_llama" --config "$work/run.yaml" "${options[@]}" > "$work/$seed-$run.log" 2>&1 ||
    { tail -n 5 "$work/$seed-$run.log" >&2; exit 1; }
done
"$python" "$root/scripts/bench/curves.py" gaps "$work" "$seed" bf16 "$@" | tee "$work/$seed.json"
