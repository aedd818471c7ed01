#!/usr/bin/env bash
# Jobs that are requeued on other nodes under a real Slurm: requeue_test.sh BIN PYTHON CASE. Exit code 77: skipped.
#   fewer     two nodes; one is drained, the job is stopped by SIGTERM and goes on with the other alone: the same samples,
#             losses equal within rounding
#   replaced  four nodes, the job on two; one of the two is powered off, then, in the job's next life, the one that runs
#             its script and rank 0. Slurm requeues it each time on the nodes that are left: to the bit
set -uo pipefail

bin=$1 python=$2 case=$3
root=$(cd "$(dirname "$0")/../.." && pwd)
NODES=2
if [[ $case == replaced ]]; then
  NODES=4
  export TEST_CLUSTER_NODE_SECONDS=10  # Slurm gives a silent node up after this time; the ranks do after less
fi
source "$root/tests/slurm/site.sh"

export TRIREME_DEVICE=cpu OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1
small_run

logged() { grep -qE -- "$1" "$work/job.log" 2>/dev/null; }
logged_times() { (($(grep -cE -- "$2" "$work/job.log" 2>/dev/null) >= $1)); }
is() { [[ $(state) =~ ^($1)$ ]]; }
script_ended() { ! pgrep -f "job0*$job/slurm_script" >/dev/null; }
requeued() { [[ $(requeues) == "$1" ]] && is PENDING && script_ended; }  # NUMBER
start_now() {
  sleep 2  # the end of the last script must not be mistaken for the next one's
  control scontrol update JobId="$job" StartTime=now  # Slurm waits two minutes after a requeue
}
submit() {  # options of sbatch -- settings of the run
  local options arguments
  split_arguments "$@"
  run env TRIREME_BUILD="${bin%/bin}" TRIREME_PROGRAM="$bin/train_llama" TRIREME_FAULT=sleep@step:rank0:0.3s sbatch --parsable \
    --output="$work/job.log" --ntasks-per-node=2 --time=60 --chdir="$work" "${options[@]}" "$root/scripts/slurm/train_llama.sbatch" "$work/run.yaml" "${arguments[@]}"
  job=$(tr -dc '0-9' <"$out")
  out=$work/job.log
}
give_up_early() {
  ((failures)) || return 0
  control scontrol show job "$job" | grep -E 'JobState|NumNodes|Restarts'
  control sinfo -N -o '%n %T %E'
  exit 1
}
# Compares the train rows of metrics.jsonl: step, samples, and the rest within the relative difference TOLERANCE.
compare() {  # RUN REFERENCE TOLERANCE
  run "$python" -c 'import json, sys
def rows(run):
    found = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
    return [(m["step"], m["samples"], m["loss"], m["grad_norm"], m["lr"]) for m in found if m["event"] == "train"]
got, want, tolerance = rows(sys.argv[1]), rows(sys.argv[2]), float(sys.argv[3])
assert want and [g[:2] for g in got] == [w[:2] for w in want], (got, want)
worst = max(abs(a - b) / abs(b) for g, w in zip(got, want) for a, b in zip(g[2:], w[2:]) if a != b or b)
print(f"worst difference {worst:.1e}")
assert worst <= tolerance, (got, want)' "$@"
}

fewer() {
  cat >run.yaml <<YAML
model: {path: base}
data: {train: train.npy, seq_length: 48}
batch: {global_batch_size: 8, micro_batch_size: 1}
train: {max_steps: 24}
output: {dir: run, save_every_samples: 160}
YAML
  run srun --nodes=1 --ntasks=1 --mpi=pmix "$bin/train_llama" --config "$work/run.yaml" --set "output.dir=reference"
  check "reference on one rank" ends_with 0
  export TRIREME_REQUEUE=1 TRIREME_NODES=1-2 TRIREME_LEAST_SECONDS=999999999
  submit --nodes=1-2 -- --set output.dir=elastic
  check "the job starts on two nodes" wait_until 40 logged 'on node\[1-2\], 4 ranks, started .*, attempt 1$'
  check "and trains" wait_until 40 logged 'step 4/24'
  control scontrol update NodeName=node2 State=DRAIN Reason=test
  control scancel --signal=TERM "$job"  # to the ranks, as before the time limit
  check "it saves, and queues itself again" wait_until 40 logged "queued again as job $job"
  check "Slurm has it in its queue" wait_until 40 requeued 1
  start_now
  check "its next life has one node" wait_until 40 logged 'on node1, 2 ranks, started .*, attempt 1 after 1 requeues'
  give_up_early
  check "and resumes" wait_until 30 logged 'resuming after step .*written by 4 ranks'
  check "and finishes" wait_until 60 is 'COMPLETED'
  compare elastic reference 2e-6
  check "every sample once in its place, losses equal within rounding" ends_with 0
  cat "$out"
}

replaced() {
  # Dropout: positions of the random streams must be restored as well.
  cat >run.yaml <<YAML
model: {path: base}
lora: {r: 4, alpha: 8, dropout: 0.1, target_modules: [q_proj, v_proj]}
data: {train: train.npy, seq_length: 48}
batch: {global_batch_size: 8, micro_batch_size: 1}
train: {max_steps: 40}
output: {dir: run, save_every_samples: 24}
YAML
  run srun --nodes=2 --ntasks-per-node=2 --mpi=pmix "$bin/train_llama" --config "$work/run.yaml" --set output.dir=calm
  check "undisturbed on two nodes" ends_with 0
  export TRIREME_HANG_SECONDS=4
  control scontrol update NodeName=node4 State=DRAIN Reason=spare  # Slurm prefers neighbours: nodes 3 and 4 to 1 and 3
  submit --nodes=2 -- --set output.dir=moved
  check "the job starts on nodes 1 and 2" wait_until 40 logged 'on node\[1-2\], 4 ranks, started .*, attempt 1$'
  check "and trains beyond its first checkpoint" wait_until 40 logged 'step 8/40'
  "$cluster" power-off 2
  check "node 2 is off: the ranks of node 1 name it" wait_until 20 logged 'ranks 2-3 did not answer|rank [23] on node2'
  check "Slurm gives it up and queues the job again" wait_until 60 requeued 1
  start_now
  check "the next life is on nodes 1 and 3" wait_until 40 logged 'on node\[1,3\], 4 ranks, started .*, attempt 1 after 1 requeues'
  give_up_early
  check "and resumes" wait_until 30 logged_times 1 'resuming after step '
  check "and trains beyond the next checkpoint" wait_until 40 logged 'step 20/40'
  control scontrol update NodeName=node4 State=RESUME
  "$cluster" power-off 1
  check "node 1 is off, with script and rank 0: Slurm queues the job again" wait_until 60 requeued 2
  start_now
  check "the next life is on nodes 3 and 4" wait_until 40 logged 'on node\[3-4\], 4 ranks, started .*, attempt 1 after 2 requeues'
  give_up_early
  check "and resumes" wait_until 30 logged_times 2 'resuming after step '
  check "and finishes" wait_until 60 is 'COMPLETED'
  grep -oE 'resuming after step [0-9]+' "$work/job.log"
  compare moved calm 0
  check "losses, gradient norms and rates are those of the undisturbed run, to the bit" ends_with 0
  run diff -r moved/adapter calm/adapter
  check "so is the adapter" test "$code" = 0 -a -s moved/adapter/adapter_model.safetensors
}

"$case"
if ((failures)); then
  echo "$failures checks failed"
  exit 1
fi
