#!/usr/bin/env bash
# Faults of the network between nodes of a real Slurm (F42 to F46): node_faults.sh BIN PYTHON CASE. Exit code 77: skipped.
set -uo pipefail

bin=$1 python=$2 fault=$3
root=$(cd "$(dirname "$0")/../.." && pwd)
NODES=2
export TEST_CLUSTER_NODE_SECONDS=20  # Slurm gives a silent node up after this time; ours is shorter
source "$root/tests/slurm/site.sh"

# More ranks than cores: a rank that waits gives its core away.
export TRIREME_DEVICE=cpu OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1
driver=$bin/../tests/rank_driver
small_run
cat >run.yaml <<YAML
model: {path: base}
lora: {r: 4, alpha: 8, dropout: 0.1, target_modules: [q_proj, v_proj]}
data: {train: train.npy, seq_length: 48}
batch: {global_batch_size: 8, micro_batch_size: 1}
train: {max_steps: 6}
output: {dir: run}
YAML
numbers() { grep '"event":"train"' "$work/$1/metrics.jsonl" | grep -oE '"(step|loss|grad_norm)":[^,}]+'; }
same_numbers() { [[ -n $(numbers "$1") && $(numbers "$1") == "$(numbers "$2")" ]]; }
no_ranks() { ! pgrep -f "^($driver|$bin/train_llama .*$work/run.yaml)" >/dev/null; }
ended_within() {  # SECONDS: no rank is left so long after the mark. srun and mpirun may still wait for the other node
  while ! no_ranks; do
    ((SECONDS - marked <= $1)) || return 1
    sleep 0.1
  done
  seconds=$((SECONDS - marked))
}
some_ranks() { ! no_ranks; }

# Starts a command in the background; `finish` waits for it, counting from the last `mark`.
begin() {
  out=$work/out
  : >"$out"
  timeout -k 5 100 "$cluster" exec "$@" >"$out" 2>&1 &
  running=$!
  marked=$SECONDS
}
mark() { marked=$SECONDS; }
finish() {
  wait "$running"
  code=$?
  seconds=$((SECONDS - marked))
}
saw() {  # PATTERN: waits for it in the output
  for ((i = 0; i < 600; i++)); do
    grep -qE -- "$1" "$out" && return 0
    kill -0 "$running" 2>/dev/null || return 1
    sleep 0.05
  done
  return 1
}
by_mpirun=(mpirun --allow-run-as-root --host node1:2,node2:2 -n 4)
by_srun=(srun --nodes=2 --ntasks=4 --mpi=pmix)
training=("$bin/train_llama" --config "$work/run.yaml")

# Ranks 0 and 1 on node1, 2 and 3 on node2, that meet through the store of node1: no Slurm, no MPI.
begin_by_environment() {  # STEPS [MASTER_ADDR]
  cat >"$work/ranks.sh" <<SH
export MASTER_ADDR=${2:-node1} MASTER_PORT=29871 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2
for rank in 0 1 2 3; do
  RANK=\$rank LOCAL_RANK=\$((rank % 2)) "$cluster" node \$((rank / 2 + 1)) "$driver" "$1" >"$work/rank\$rank" 2>&1 &
  ranks+=(\$!)
done
codes=()
for rank in "\${ranks[@]}"; do wait "\$rank"; codes+=(\$?); done
tail -n 5 $work/rank[0-3]
echo "exit codes \${codes[*]}"
SH
  out=$work/out
  : >"$out"
  rm -f "$work"/rank[0-3]
  mark
  timeout -k 5 100 bash "$work/ranks.sh" >"$out" 2>&1 &
  running=$!
}

runs_by_environment() {
  for ((i = 0; i < 400; i++)); do
    grep -q 'step 5' "$work/rank0" 2>/dev/null && return 0
    sleep 0.05
  done
  return 1
}

flap() {  # F42
  export TRIREME_HANG_SECONDS=15
  begin_by_environment 60
  check "F42 RANK…: the ranks run" runs_by_environment
  "$cluster" link 2 down
  sleep 4
  check "F42 RANK…: they wait while the link is down" bash -c '! grep -q "step 60" "$0"' "$work/rank0"
  "$cluster" link 2 up
  finish
  check "F42 RANK…: they go on when it is back" says 'exit codes 0 0 0 0'
  run srun --nodes=1 --ntasks=4 --mpi=pmix "${training[@]}" --set output.dir=calm
  check "F42: undisturbed, the run ends well" ends_with 0
  begin "${by_srun[@]}" "${training[@]}" --set output.dir=cut
  check "F42: the run runs" saw 'step 2/'
  "$cluster" link 2 down
  sleep 4
  "$cluster" link 2 up
  finish
  check "F42: a link that comes back within the limit: the run goes on" ends_with 0
  check "F42: losses are those of an undisturbed run" same_numbers calm cut
}

cut() {  # F43
  export TRIREME_HANG_SECONDS=4
  begin_by_environment 2000
  check "F43 RANK…: the ranks run" runs_by_environment
  check "F43 RANK…: they are seen" some_ranks
  mark
  "$cluster" link 2 down
  check "F43 RANK…: all gone within T + 15 s" ended_within 19
  "$cluster" link 2 up
  finish
  check "F43 RANK…: all end with 71" says 'exit codes 71 71 71 71'
  check "F43 RANK…: ranks and nodes are named" says 'ranks 2-3 did not answer|rank [23] on node2'
  for launcher in srun mpirun; do
    declare -n launch=by_$launcher
    begin "${launch[@]}" "${training[@]}" --set output.dir=$launcher --set train.max_steps=2000
    check "F43 $launcher: the run runs" saw 'step 2/'
    check "F43 $launcher: its ranks are seen" some_ranks
    mark
    "$cluster" link 2 down
    check "F43 $launcher: all ranks on both sides are gone within T + 15 s" ended_within 19
    "$cluster" link 2 up
    finish
    check "F43 $launcher: it fails" test "$code" != 0
    check "F43 $launcher: the missing ranks are named" says 'ranks 2-3 did not answer|rank [23] on node2 .*(never reached|lost)'
  done
}

off() {  # F44
  export TRIREME_HANG_SECONDS=4
  begin "${by_srun[@]}" "${training[@]}" --set output.dir=off --set train.max_steps=2000
  check "F44: the run runs" saw 'step 2/'
  check "F44: its ranks are seen" some_ranks
  mark
  "$cluster" power-off 2
  check "F44: the ranks of the other node end within T + 15 s" ended_within 19
  finish
  check "F44: srun fails" test "$code" != 0
  check "F44: the missing ranks are named" says 'ranks 2-3 did not answer|rank [23] on node2'
}

meet() {  # F45, F46
  export TRIREME_RENDEZVOUS_SECONDS=4
  "$cluster" link 2 down
  begin_by_environment 5
  finish
  "$cluster" link 2 up
  check "F45: node1 cannot be reached: the ranks that are there end with 71, the others with 2" says 'exit codes 71 71 2 2'
  check "F45: within the limit + 10 s" test "$seconds" -lt 14
  check "F45: the ranks that are there name the others" says 'ranks 2, 3 of 4 did not arrive at node1:29871 within 4 s'
  check "F45: the others name rank 0's address" says 'rank [23] cannot reach rank 0 at node1:29871 within 4 s.*(MASTER_ADDR|MASTER_PORT)'
  # As where a host's own name resolves to its loopback interface.
  begin_by_environment 5 127.0.0.1
  finish
  check "F46: an address of the wrong interface: the ranks that are there end with 71, the others with 2" says 'exit codes 71 71 2 2'
  check "F46: within the limit + 10 s" test "$seconds" -lt 14
  check "F46: the address is named" says 'rank [23] cannot reach rank 0 at 127.0.0.1:29871 within 4 s.*MASTER_ADDR'
}

"$fault"
if ((failures)); then
  echo "$failures checks failed"
  exit 1
fi
