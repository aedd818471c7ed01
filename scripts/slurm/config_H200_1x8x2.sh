# Llama 3.1 8B on one node of 8 H200: two samples per GPU and forward, one forward per step: global batch 16.
# shellcheck shell=bash
# shellcheck source=scripts/slurm/config_llama31_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/config_llama31_common.sh"

export DGXNNODES=1
export DGXNGPU=8
export MLPERF_SUBMISSION_PLATFORM=${MLPERF_SUBMISSION_PLATFORM:-${DGXNGPU}xH200}
export WALLTIME_RUNANDTIME=300
export WALLTIME=$((5 + ${NEXP:-1} * (WALLTIME_RUNANDTIME + 5)))
DGXSYSTEM=$(basename "${BASH_SOURCE[0]}" .sh)
export DGXSYSTEM=${DGXSYSTEM#config_}
