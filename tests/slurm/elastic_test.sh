#!/usr/bin/env bash
# A job that is requeued on fewer nodes under a real Slurm: elastic_test.sh BIN PYTHON. It starts on two nodes, is stopped
# by SIGTERM while one of them is drained, and goes on with the other alone: the same samples, equal losses within rounding.
# Exit code 77: skipped.
set -uo pipefail

bin=$1 python=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
NODES=2
source "$root/tests/slurm/site.sh"

export TRIREME_DEVICE=cpu OMP_NUM_THREADS=1
cd "$work" || exit 1
"$bin/trireme" init-model --hidden-size 32 --layers 2 --heads 4 --kv-heads 2 --intermediate-size 64 --vocab-size 120 --max-positions 128 \
  --output base >/dev/null 2>&1 || exit 1
"$python" -c "import numpy as np; np.save('train.npy', np.random.default_rng(5).integers(0, 120, size=(40, 48)).astype(np.int32))" ||
  skip "$python has no numpy; scripts/setup.sh installs it"
cat >run.yaml <<YAML
model: {path: base}
data: {train: train.npy, seq_length: 48}
batch: {global_batch_size: 8, micro_batch_size: 1}
train: {max_steps: 24}
output: {dir: run, save_every_samples: 160}
YAML

control() { timeout 20 "$cluster" exec "$@"; }
state() { control scontrol show job "$job" 2>/dev/null | sed -n 's/.*JobState=\([A-Z]*\).*/\1/p'; }
wait_until() {  # SECONDS CONDITION…
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < end)) || return 1
    sleep 0.2
  done
}
logged() { grep -qE -- "$1" "$work/job.log" 2>/dev/null; }
is() { [[ $(state) =~ ^($1)$ ]]; }
alone() { ! pgrep -f "job0*$job/slurm_script" >/dev/null; }

run srun --nodes=1 --ntasks=1 --mpi=pmix "$bin/train_llama" --config "$work/run.yaml" --set "output.dir=reference"
check "reference on one rank" ends_with 0

start=$SECONDS
run env TRIREME_BUILD="${bin%/bin}" TRIREME_PROGRAM="$bin/train_llama" TRIREME_REQUEUE=1 TRIREME_NODES=1-2 TRIREME_LEAST_SECONDS=999999999 \
  TRIREME_FAULT=sleep@step:rank0:0.3s sbatch --parsable --output="$work/job.log" --nodes=1-2 --ntasks-per-node=2 --time=60 --chdir="$work" \
  "$root/scripts/slurm/train_llama.sbatch" "$work/run.yaml" --set output.dir=elastic
job=$(tr -dc '0-9' <"$out")
out=$work/job.log
check "the job starts on two nodes" wait_until 40 logged 'on node\[1-2\], 4 ranks, started .*, attempt 1$'
check "and trains" wait_until 40 logged 'step 4/24'
control scontrol update NodeName=node2 State=DRAIN Reason=test
control scancel --signal=TERM "$job"  # to the ranks, as before the time limit
check "it saves, and queues itself again" wait_until 40 logged "queued again as job $job"
wait_until 20 alone
wait_until 20 is PENDING
sleep 2
control scontrol update JobId="$job" StartTime=now  # Slurm waits two minutes after a requeue
check "its next life has one node" wait_until 40 logged 'on node1, 2 ranks, started .*, attempt 1 after 1 requeues'
((failures)) && { control scontrol show job "$job" | grep -E 'JobState|NumNodes'; exit 1; }
check "and resumes" wait_until 30 logged 'resuming after step .*written by 4 ranks'
check "and finishes" wait_until 60 is 'COMPLETED'
seconds=$((SECONDS - start))
cat >compare.py <<'PYTHON'
import json
def numbers(run):
    found = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
    return [(m["step"], m["samples"], m["loss"]) for m in found if m["event"] == "train"]
got, want = numbers("elastic"), numbers("reference")
assert [g[:2] for g in got] == [w[:2] for w in want], (got, want)
worst = max(abs(a[2] - b[2]) / abs(b[2]) for a, b in zip(got, want))
assert worst < 2e-6, worst
print(f"worst loss difference {worst:.1e}")
PYTHON
run "$python" compare.py
check "every sample once in its place, losses equal within rounding" ends_with 0
cat "$out"

if ((failures)); then
  echo "$failures checks failed"
  exit 1
fi
