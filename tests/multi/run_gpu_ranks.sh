#!/usr/bin/env bash
# Starts N copies of a program, one per GPU, as ranks that find each other through RANK, WORLD_SIZE and MASTER_ADDR:
#   run_gpu_ranks.sh N PROGRAM [ARGUMENTS…]
# Exits with the first non-zero exit code of a rank, 77 (skipped) when there are fewer than N GPUs.
set -uo pipefail

ranks=$1
shift
gpus=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU')
if ((gpus < ranks)); then
  echo "SKIPPED: $ranks GPUs are needed, this machine has $gpus"
  exit 77
fi
port=$((20000 + $$ % 20000))
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
export TRIREME_TEST_GPU=1 WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
pids=()
for ((rank = 0; rank < ranks; rank++)); do
  RANK=$rank LOCAL_RANK=$rank "$@" &
  pids+=($!)
done
result=0
for pid in "${pids[@]}"; do
  wait "$pid"
  code=$?
  if ((code != 0 && result == 0)); then result=$code; fi
done
exit "$result"
