#!/usr/bin/env bash
# Measures the fused attention kernels on the GPU of this machine. With --torch also cuDNN (rows of equal length) or
# LibTorch's flash attention (packed rows, dropout), alternating in the same process, and prints the ratio.
#
#   scripts/bench/attention.sh [--torch] [--json FILE]
#
# Rows named "(TFLOP/s)" count 4 S^2 d of every sequence and head forward, 2.5 times that backward, half when causal, side kernels included.
# kKernelsFaster in src/ops/attention.cpp lists the causal shapes in which they are the fastest.
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/kernels.sh" --filter attention "$@"
