#!/usr/bin/env bash
# The rows of docs/benchmarks.md for Llama2-70B LoRA on random weights, under MLPerf's shapes and the Hugging Face recipe's.
#
#   scripts/bench/llama70b_lora.sh [GPUS] [ROW …]
#
# ROW: fp8-8192 | bf16-8192 | bf16-2048 | 7b | communication (default: all that GPUS GPUs can run). STEPS (default 13, of which the first
# WARMUP, three, do not count) and ACCUMULATION (bf16-2048: micro-batches a step, default 4) may be set. Each row ends with a summary line.
set -euo pipefail
gpus=${1:-$(nvidia-smi --list-gpus | wc -l)}
shift $(( $# < 1 ? $# : 1 ))
steps=${STEPS:-13} accumulation=${ACCUMULATION:-4}
mlperf=(--set "lora.target_modules=[qkv_proj,o_proj]")
seven=(--set "lora.target_modules=[q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj]")
rows=("$@")
if [ ${#rows[@]} -eq 0 ]; then
  rows=(fp8-8192)
  if [ "$gpus" -gt 1 ]; then rows+=(bf16-8192 bf16-2048 communication); else rows+=(7b); fi
fi

run() {
  local row=$1
  shift
  echo "== $row on $gpus GPUs"
  "$(dirname "${BASH_SOURCE[0]}")/llama_lora.sh" "$@" 2>&1 | grep -E "units:|total|available|frozen shards|^step|plan|summary|%|kernels of|train_llama:"
}

for row in "${rows[@]}"; do
  case $row in
    # MLPerf: sequences of 8192, a global batch of 8 (one GPU: 1).
    fp8-8192) run "$row" 70b 8192 1 "$(( gpus > 1 ? 8 : 1 ))" "$steps" "$gpus" "${mlperf[@]}" --set precision.linear=fp8 ;;
    bf16-8192) run "$row" 70b 8192 1 8 "$steps" "$gpus" "${mlperf[@]}" ;;
    bf16-2048) run "$row" 70b 2048 8 "$(( 8 * accumulation * gpus ))" "$steps" "$gpus" "${seven[@]}" --set lora.r=8 --set lora.alpha=16 ;;
    7b) gpus=1 run "$row" 7b 4096 1 1 "$steps" 1 "${seven[@]}" --set parallel.recompute=none ;;
    # Half of the blocks fit without sharding: the same work without gathers, with peer-memory gathers and with NCCL
    # gathers.
    communication)
      run "$row: no gathers" 70b40 2048 2 "$(( 2 * gpus ))" "$steps" "$gpus" "${mlperf[@]}" --set parallel.shard_size=1
      run "$row: pulled" 70b40 2048 2 "$(( 2 * gpus ))" "$steps" "$gpus" "${mlperf[@]}" --set parallel.shard_size=world
      TRIREME_PEER_MEMORY=0 run "$row: NCCL" 70b40 2048 2 "$(( 2 * gpus ))" "$steps" "$gpus" "${mlperf[@]}" --set parallel.shard_size=world ;;
    *) echo "unknown row $row" >&2; exit 2 ;;
  esac
done
