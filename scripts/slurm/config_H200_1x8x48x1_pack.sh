# One node, 8 H200, 48 packs per GPU and step, no accumulation: global batch 384 packs, 768 sequences.
# shellcheck shell=bash
# shellcheck source=scripts/slurm/config_bert_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/config_bert_common.sh"

export DGXNNODES=1
export DGXNGPU=8
export BATCHSIZE=48      # packs per GPU and forward
export GRADIENT_STEPS=1  # forwards per step
export MLPERF_SUBMISSION_PLATFORM=${MLPERF_SUBMISSION_PLATFORM:-${DGXNGPU}xH200}
export WALLTIME_RUNANDTIME=12
export WALLTIME=$((5 + ${NEXP:-1} * (WALLTIME_RUNANDTIME + 5)))
DGXSYSTEM=$(basename "${BASH_SOURCE[0]}" .sh)
export DGXSYSTEM=${DGXSYSTEM#config_}
