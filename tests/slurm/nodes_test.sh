#!/usr/bin/env bash
# Training over several nodes of a real Slurm: nodes_test.sh BIN PYTHON PROBE [all]. Losses and gradient norms equal those
# of one node to the bit, however the ranks are spread. Exit code 77: skipped.
set -uo pipefail

bin=$1 python=$2 probe=$3
root=$(cd "$(dirname "$0")/../.." && pwd)
NODES=4
source "$root/tests/slurm/site.sh"

# --- a small model, all of it trained: shard groups of two ranks, copied
export TRIREME_DEVICE=cpu OMP_NUM_THREADS=1
cd "$work" || exit 1
PYTHONPATH=$root/tests/train "$python" -c "import numpy as np, tiny_llama
tiny_llama.write_llama('base', 120)
np.save('train.npy', np.random.default_rng(5).integers(0, 120, size=(40, 48)).astype(np.int32))" ||
  skip "$python has no numpy; scripts/setup.sh installs it"
cat >run.yaml <<YAML
model: {path: base}
data: {train: train.npy, seq_length: 48}
batch: {global_batch_size: 8, micro_batch_size: 1}
parallel: {policy: full, shard_size: 2}
train: {max_steps: 4}
output: {dir: run}
YAML
# The part of the metrics that must not depend on where the ranks are.
numbers() { grep '"event":"train"' "$work/$1/metrics.jsonl" | grep -oE '"(step|loss|grad_norm)":[^,}]+'; }
same_numbers() { [[ -n $(numbers "$1") && $(numbers "$1") == "$(numbers "$2")" ]]; }
train() {  # NAME LAUNCHER…
  local name=$1
  shift
  run "$@" "$bin/train_llama" --config "$work/run.yaml" --set "output.dir=$name"
  check "$name: ends well" ends_with 0
}

train 1x4 srun --nodes=1 --ntasks=4 --mpi=pmix
train 2x2-cyclic srun --nodes=2 --ntasks=4 --ntasks-per-node=2 --distribution=cyclic --mpi=pmix
check "2x2 cyclic: losses are those of one node" same_numbers 1x4 2x2-cyclic
check "2x2 cyclic: shard groups are inside the nodes" says '2 hosts with 2 ranks each; ranks are numbered host by host: .* shard groups of 2 within hosts, copies across'
check "2x2 cyclic: the hosts of the ranks" grep -q '"hosts":\["node1","node1","node2","node2"\]' "$work/2x2-cyclic/metrics.jsonl"
if [[ ${4:-} == all ]]; then
  train 2x2-mpirun mpirun --allow-run-as-root --host node1:2,node2:2 -n 4
  check "2x2 mpirun: losses are those of one node" same_numbers 1x4 2x2-mpirun
  check "2x2 mpirun: nothing is renumbered" says '2 hosts with 2 ranks each; shard groups of 2 within hosts'
  train 4x1 srun --nodes=4 --ntasks=4 --mpi=pmix
  check "4x1: losses are those of one node" same_numbers 1x4 4x1
  check "4x1: the banner says where gathers go" says '4 hosts with 1 rank each; shard groups of 2 reach over several hosts'

  # Unequal nodes: three of them, seven ranks, in blocks and dealt out.
  for distribution in block cyclic; do
    run srun --nodes=3 --ntasks=7 --distribution=$distribution --mpi=pmix "$probe"
    check "3 nodes, 7 ranks, $distribution: ends well" ends_with 0
    check "3 nodes, 7 ranks, $distribution: all are there" lines 7 'rank [0-6] of 7 on node[123]: .* sum 28,'
    check "3 nodes, 7 ranks, $distribution: ranks of a node follow each other" \
      test "$(grep -oE 'rank [0-6] of 7 on node[0-9]' "$out" | sort | sed 's/.*on //' | uniq | wc -l)" = 3
    check "3 nodes, 7 ranks, $distribution: shard groups are explained" says '3 hosts with . to . ranks: no number of ranks above 1 divides'
  done
  run srun --nodes=2 --ntasks=4 --ntasks-per-node=2 --distribution=cyclic --mpi=pmix "$probe" --set exit_rank=1 --set how=kill
  check "kill -9 on renumbered ranks: within 10 s" fails_within 10
  check "kill -9 on renumbered ranks: the node is right" says 'rank 1 on node1 .*died'

  # The cluster ends with its owner, even when that has no time to clean up.
  second=$work/second
  bash -c "TEST_CLUSTER_OWNER=\$\$ '$cluster' start 2 '$second' >/dev/null && kill -KILL \$\$" 2>/dev/null
  for ((i = 0; i < 100; i++)); do
    pgrep -f "$second" >/dev/null || break
    sleep 0.1
  done
  pgrep -af "$second" >"$out"
  check "a cluster ends with its owner" test ! -s "$out"
fi

if ((failures)); then
  echo "$failures checks failed"
  exit 1
fi
