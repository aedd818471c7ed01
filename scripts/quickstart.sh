#!/usr/bin/env bash
# A complete example: sets up, builds, trains a tokenizer and a small Llama on text that every Debian and Ubuntu has,
# fine-tunes it with LoRA on another text, and prints the same prompt's continuation before and after. About one
# minute on two cores once built.
#
#   scripts/quickstart.sh [DIRECTORY]     results go to DIRECTORY, relative to where you stand (default: runs/quickstart
#                                         of the project); a folder that an earlier quick start made is replaced, any
#                                         other that is not empty is refused
set -euo pipefail
stood=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

refuse() {
  printf 'quickstart: %s\n' "$*" >&2
  exit 2
}

# The mark of a folder that belongs to the quick start.
mark=.trireme-quickstart
out=$PWD/runs/quickstart
if [ $# -gt 0 ]; then
  case $1 in
    -h | --help)
      sed -n 's/^# \{0,1\}//; 2,/^set /{/^set /!p}' scripts/quickstart.sh
      exit 0
      ;;
    '') refuse "the directory's name is empty: name one, or none for $out" ;;
    -*) refuse "there is no option $1: scripts/quickstart.sh [DIRECTORY] (./$1 for a directory of this name)" ;;
    /*) out=$1 ;;
    '~' | '~/'*) out=$HOME${1#'~'} ;;  # quoted, so that the shell left it
    *) out=$stood/$1 ;;
  esac
fi
if [ $# -gt 1 ]; then refuse "one directory at most, and these are $#: $*"; fi
# Before the build, which takes minutes.
if [ -e "$out" ] || [ -L "$out" ]; then
  if [ ! -d "$out" ]; then refuse "$out is not a directory: name another one"; fi
  if [ ! -e "$out/$mark" ] && [ -n "$(ls -A -- "$out")" ]; then
    refuse "$out is not empty, and no earlier quick start made it (it has no $mark): name another directory, or empty this one"
  fi
  for place in "$PWD" "$stood"; do
    case $(realpath -- "$place")/ in
      "$(realpath -- "$out")"/*) refuse "$out holds $place, which would be removed with it: name another directory" ;;
    esac
  done
fi
# The folder itself stays: it may be a link or a mount point.
mark_folder() {
  mkdir -p "$out" && : >"$out/$mark" || { echo "quickstart: $out cannot be written: name another directory" >&2; exit 73; }
}
mark_folder

setup_all
# The one program and its names, completions and man pages: all that cmake --install copies.
build_release trireme_tool interface

bin=$PWD/build/release/bin
licences=/usr/share/common-licenses
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

gpus=0
if command -v nvidia-smi >/dev/null 2>&1; then gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true); fi
if [ "$gpus" -ge 2 ]; then ranks=2; device="2 GPUs"
elif [ "$gpus" -eq 1 ]; then ranks=1; device="1 GPU"
else ranks=2; device="2 CPU ranks"; fi
if [ "$ranks" -gt 1 ]; then launch=(mpirun -n "$ranks" --oversubscribe --bind-to none)
  if [ "$(id -u)" -eq 0 ]; then launch+=(--allow-run-as-root); fi
else launch=(); fi

# Two texts: licences of the GNU family for pre-training, other licences for fine-tuning.
pretrain=() ; tune=()
for name in GPL-1 GPL-2 GPL-3 LGPL-2 LGPL-2.1 LGPL-3 GFDL-1.2 GFDL-1.3 MPL-1.1 MPL-2.0; do
  if [ -f "$licences/$name" ]; then pretrain+=("$licences/$name"); fi
done
for name in Apache-2.0 Artistic CC0-1.0; do
  if [ -f "$licences/$name" ]; then tune+=("$licences/$name"); fi
done
if [ ${#pretrain[@]} -eq 0 ] || [ ${#tune[@]} -eq 0 ]; then
  echo "quickstart: $licences has no texts to train on (package base-files)" >&2
  exit 3
fi

find "$out/" -mindepth 1 -delete
mark_folder
started=$(date +%s)

say "1/5  A tokenizer from ${#pretrain[@]} texts, packed into rows of 128 tokens"
"$bin/trireme" tokenizer train --input "${pretrain[@]}" --vocab-size 1024 --output "$out/tokenizer.model"
"$bin/trireme" data pack --tokenizer "$out/tokenizer.model" --input "${pretrain[@]}" --seq-length 128 --bos \
  --output "$out/pretrain.npy" --valid-output "$out/pretrain-valid.npy" --valid-fraction 0.05
"$bin/trireme" data pack --tokenizer "$out/tokenizer.model" --input "${tune[@]}" --seq-length 128 --bos \
  --output "$out/tune.npy" --valid-output "$out/tune-valid.npy" --valid-fraction 0.1

say "2/5  A small Llama with random weights"
"$bin/trireme" init-model --preset llama-tiny --vocab-size 1024 --tokenizer "$out/tokenizer.model" --output "$out/random-model"

cat > "$out/pretrain.yaml" <<YAML
model: {path: random-model}
data: {train: pretrain.npy, valid: pretrain-valid.npy, seq_length: 128}
batch: {global_batch_size: 16, micro_batch_size: 8}
optimizer: {lr: 3.0e-3, betas: [0.9, 0.95], weight_decay: 0.1, grad_clip: 1.0}
schedule: {name: cosine, warmup_steps: 20, min_lr: 3.0e-4}
train: {max_steps: 280, loss: token_mean}
eval: {every_samples: 1120}
logging: {every_steps: 50}
output: {dir: pretrain}
YAML
cat > "$out/lora.yaml" <<YAML
model: {path: pretrain/model}
lora: {r: 16, alpha: 32, dropout: 0.05, target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]}
data: {train: tune.npy, valid: tune-valid.npy, seq_length: 128}
batch: {global_batch_size: 16, micro_batch_size: 8}
optimizer: {lr: 1.0e-3, weight_decay: 1.0e-4, grad_clip: 0.3}
schedule: {name: cosine, warmup_steps: 5}
train: {max_steps: 60, loss: token_mean}
eval: {every_samples: 160}
logging: {every_steps: 10}
output: {dir: lora}
YAML

say "3/5  Pre-training on $device"
"${launch[@]}" "$bin/train_llama" --config "$out/pretrain.yaml"
"$bin/trireme" plot "$out/pretrain/metrics.jsonl"

say "4/5  LoRA on another text, on $device"
"${launch[@]}" "$bin/train_llama" --config "$out/lora.yaml"
"$bin/trireme" plot "$out/lora/metrics.jsonl"

say "5/5  The same prompt before and after"
prompt="You may reproduce and distribute"
echo "before:"
"$bin/trireme" generate --model "$out/pretrain/model" --prompt "$prompt" --max-new-tokens 30
echo "after:"
"$bin/trireme" generate --model "$out/pretrain/model" --adapter "$out/lora/adapter" --prompt "$prompt" --max-new-tokens 30
"$bin/trireme" adapter merge --model "$out/pretrain/model" --adapter "$out/lora/adapter" --output "$out/merged"

say "Done in $(( $(date +%s) - started )) s: the adapter is $out/lora/adapter, the merged model $out/merged"
printf 'Change %q and run: %s%s --config %q --set output.dir=lora2\n' "$out/lora.yaml" "${launch[*]:+${launch[*]} }" "$bin/train_llama" "$out/lora.yaml"
