#!/usr/bin/env bash
# GPT-3 126M: 100 steps on two nodes, mock data. Variables and arguments: common.sh.
set -euo pipefail

MODEL=gpt3 MODEL_SIZE=126m
: "${NUM_NODES:=2}" "${MAX_STEPS:=100}"
# shellcheck source=scripts/slurm/gpt3/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
launch_benchmark "$@"
