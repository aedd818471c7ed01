#!/usr/bin/env bash
# Speed of the fused attention kernels on the GPU of this machine; with --torch, in turn with cuDNN (rows of one length) or LibTorch's flash attention
# (packs, dropout) in the same process, with the ratio of both.
#
#   scripts/bench/attention.sh [--torch] [--json FILE]
#
# Rows named "(TFLOP/s)" count 4 S^2 d of every sequence and head forward, 2.5 times that backward, half when causal, side kernels included.
# kMeasured of src/ops/attention.cpp lists what this table says is fastest.
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/kernels.sh" --filter attention "$@"
