#!/usr/bin/env bash
# One rank of one MLPerf run; run.sub starts it with srun; it can also be started by hand. Variables: see
# config_common.sh and env.sh.
set -euo pipefail

: "${DATADIR:?}" "${MODEL:?}" "${LOGDIR:?}" "${TRIREME_BUILD:?}"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
config=${TRIREME_CONFIG:-mlperf_llama2_70b_lora.yaml}
[[ $config == /* ]] || config=$here/$config
# shellcheck source=scripts/slurm/run_rank.sh
source "$here/run_rank.sh"

if [[ -n ${FROZEN_PRECISION:-} ]]; then
  echo "FROZEN_PRECISION is now LINEAR_PRECISION: compute (was bf16) or fp8" >&2
  exit 2
fi

settings=(
  model.path="$MODEL"
  data.train="$DATADIR/${TRAIN_DATA:-train.npy}"
  data.valid="$DATADIR/${VALID_DATA:-validation.npy}"
  output.dir="$LOGDIR/${DATESTAMP:-run}_${EXPERIMENT:-1}"
  train.seed="${SEED:-1}"
)
# Variables of config_*.sh, and their configuration keys.
optional=(
  GLOBAL_BATCH_SIZE batch.global_batch_size
  MICRO_BATCH_SIZE batch.micro_batch_size
  LR optimizer.lr
  MIN_LR schedule.min_lr
  WARMUP_STEPS schedule.warmup_steps
  MAX_STEPS train.max_steps
  VAL_CHECK_INTERVAL eval.every_samples
  LINEAR_PRECISION precision.linear
  SHARD_SIZE parallel.shard_size
  RECOMPUTE parallel.recompute
)
for ((i = 0; i < ${#optional[@]}; i += 2)); do
  value=${!optional[i]:-}
  if [[ -n $value ]]; then settings+=("${optional[i + 1]}=$value"); fi
done
# shellcheck disable=SC2206  # several settings, split at blanks
settings+=(${EXTRA_SET:-})

arguments=()
for setting in "${settings[@]}"; do arguments+=(--set "$setting"); done

run_rank "${RESULT_NAME:-LLM_FINETUNING}" "${TRIREME_PROGRAM:-$TRIREME_BUILD/bin/train_llama}" --config "$config" "${arguments[@]}"
