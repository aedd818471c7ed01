#!/usr/bin/env bash
# Compares the classes of kernels (TRIREME_KERNELS) on one GPU: Llama 7B with LoRA and with all parameters in bf16, GPT-3 126M,
# BERT large in fp16. One line for each job and class.
#
#   scripts/bench/kernel_classes.sh [STEPS] [CLASS …]
#
# STEPS: 20 (all parameters of 7B: 8); CLASS: hopper, portable, none (all). hopper and none run the build in BIN (default build/release/bin), portable that in
# PORTABLE_BIN (build/portable/bin): `cmake --preset portable && cmake --build --preset portable --target trireme_tool`.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/ranks.sh"
steps=${1:-20}
shift $(( $# < 1 ? $# : 1 ))
if [ $# -eq 0 ]; then set -- hopper portable none; fi
portable=${PORTABLE_BIN:-$root/build/portable/bin}
export PROFILE=0
log=$(mktemp "${TMPDIR:-/tmp}/kernel_classes.XXXXXX")
trap 'rm -f "$log"' EXIT

run() {  # JOB COMMAND …
  local job=$1 class=$2 status=0
  shift 2
  BIN=$(if [ "$class" = portable ]; then echo "$portable"; else echo "$bin"; fi) TRIREME_KERNELS=$class "$@" > "$log" 2>&1 || status=$?
  printf '%-10s %-9s %s\n' "$job" "$class" "$(grep '^summary: ' "$log" || { echo "exit code $status"; tail -3 "$log"; })"
}

for class in "$@"; do
  run 7b-lora "$class" "$root/scripts/bench/llama_lora.sh" 7b 4096 1 1 "$steps"
  run 7b-full "$class" "$root/scripts/bench/llama_lora.sh" 7b 4096 2 2 8 1 --set lora=null --set optimizer.moments=bf16
  run gpt-126m "$class" "$root/scripts/bench/gpt.sh" 126m 32 32 "$steps"
  run bert-fp16 "$class" "$root/scripts/bench/bert.sh" large "$steps" 1 48 --set precision.compute=fp16 --set precision.loss_scale=1024
done
