# One node, 8 H200, one sample per GPU and step: global batch 8.
# shellcheck shell=bash
# shellcheck source=scripts/slurm/config_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/config_common.sh"

export DGXNNODES=1
export DGXNGPU=8
export GLOBAL_BATCH_SIZE=8
export MLPERF_SUBMISSION_PLATFORM=${MLPERF_SUBMISSION_PLATFORM:-${DGXNGPU}xH200}
export WALLTIME_RUNANDTIME=60
export WALLTIME=$((5 + ${NEXP:-1} * (WALLTIME_RUNANDTIME + 5)))
DGXSYSTEM=$(basename "${BASH_SOURCE[0]}" .sh)
export DGXSYSTEM=${DGXSYSTEM#config_}
