# One node, 4 H200, 48 packed rows per GPU and micro-batch, two micro-batches a step: global batch 384 packed rows, 768
# sequences.
# shellcheck shell=bash
# shellcheck source=scripts/slurm/config_bert_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/config_bert_common.sh"

export DGXNNODES=1
export DGXNGPU=4
export BATCHSIZE=48      # packs per GPU and forward
export GRADIENT_STEPS=2  # forwards per step
export MLPERF_SUBMISSION_PLATFORM=${MLPERF_SUBMISSION_PLATFORM:-${DGXNGPU}xH200}
export WALLTIME_RUNANDTIME=24
export WALLTIME=$((5 + ${NEXP:-1} * (WALLTIME_RUNANDTIME + 5)))
DGXSYSTEM=$(basename "${BASH_SOURCE[0]}" .sh)
export DGXSYSTEM=${DGXSYSTEM#config_}
