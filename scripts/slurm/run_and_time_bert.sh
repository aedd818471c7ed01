#!/usr/bin/env bash
# One rank of one MLPerf BERT run; run.sub starts it with srun; it can also be started by hand. Variables: see
# config_bert_common.sh and env.sh; DATADIR holds packed_data and eval_varlength, MODEL the checkpoint's directory.
# DATADIR_PHASE2_PACKED and EVALDIR name other folders of training and evaluation rows, as in MLPerf's scripts.
set -euo pipefail

: "${DATADIR:?}" "${MODEL:?}" "${LOGDIR:?}" "${TRIREME_BUILD:?}"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
config=${TRIREME_CONFIG:-mlperf_bert.yaml}
[[ $config == /* ]] || config=$here/$config
# shellcheck source=scripts/slurm/run_rank.sh
source "$here/run_rank.sh"

settings=(
  model.path="$MODEL"
  data.train="${DATADIR_PHASE2_PACKED:-$DATADIR/packed_data}"
  data.valid="${EVALDIR:-$DATADIR/eval_varlength}"
  output.dir="$LOGDIR/${DATESTAMP:-run}_${EXPERIMENT:-1}"
  train.seed="${SEED:-1}"
)
if [[ -n ${BATCHSIZE:-} ]]; then
  settings+=(batch.micro_batch_size="$BATCHSIZE" batch.global_batch_size="$((BATCHSIZE * ${GRADIENT_STEPS:-1} * ranks))")
fi
if [[ -n ${OPT_LAMB_BETA_1:-} && -n ${OPT_LAMB_BETA_2:-} ]]; then
  settings+=(optimizer.betas="[$OPT_LAMB_BETA_1, $OPT_LAMB_BETA_2]")
fi
# Variables of config_*_pack.sh, and their configuration keys.
optional=(
  LR optimizer.lr
  MAX_STEPS train.max_steps
  WEIGHT_DECAY_RATE optimizer.weight_decay
  INIT_LOSS_SCALE precision.loss_scale
  EVAL_ITER_SAMPLES eval.every_samples
  NUM_EVAL_EXAMPLES eval.samples
  TARGET_MLM_ACCURACY eval.target_accuracy
  PACKING_RATE batch.packing_rate
)
for ((i = 0; i < ${#optional[@]}; i += 2)); do
  value=${!optional[i]:-}
  if [[ -n $value ]]; then settings+=("${optional[i + 1]}=$value"); fi
done

arguments=()
for setting in "${settings[@]}"; do arguments+=(--set "$setting"); done
# shellcheck disable=SC2206  # several settings, split at blanks
extra=(${EXTRA_SET:-})
for setting in "${extra[@]}"; do arguments+=(--set "$setting"); done

run_rank BERT "${TRIREME_PROGRAM:-$TRIREME_BUILD/bin/train_bert}" --config "$config" "${arguments[@]}"
