#!/usr/bin/env bash
# GPT-3 5B: 30 steps on two nodes, mock data, one block in 24 recomputed. Variables and arguments: common.sh.
#
#   MICRO_BATCH_SIZE   rows of a rank in one forward (default 2, for 80 GB; 1 for 40 GB)
set -euo pipefail

MODEL=gpt3 MODEL_SIZE=5b
: "${NUM_NODES:=2}" "${MAX_STEPS:=30}" "${MICRO_BATCH_SIZE:=2}"
# shellcheck source=scripts/slurm/gpt3/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
launch_benchmark \
  "training.model.micro_batch_size=$MICRO_BATCH_SIZE" \
  "training.model.activations_checkpoint_granularity=full" \
  "training.model.activations_checkpoint_method=block" \
  "training.model.activations_checkpoint_num_layers=1" \
  "$@"
