#!/usr/bin/env bash
# Training under a real Slurm with one node: the time limit (F7), a dead rank (F8), repeated attempts of a job (F9),
# inside an allocation and requeued. slurm_faults.sh BIN PYTHON. Exit code 77: skipped.
set -uo pipefail

bin=$1 python=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
RUN_SECONDS=200
source "$root/tests/slurm/site.sh"
fails() { ((code != 0)); }
no_ranks() { ! pgrep -f "$work/run.yaml" >/dev/null; }
newest() { ls -1 "$work/$1/checkpoints" 2>/dev/null | grep -E '^step-[0-9]+$' | tail -n 1; }

# --- a small run
export TRIREME_DEVICE=cpu OMP_NUM_THREADS=1
small_run
cat >run.yaml <<YAML
model: {path: base}
lora: {r: 4, alpha: 8, dropout: 0.1, target_modules: [q_proj, k_proj, v_proj, o_proj]}
data: {train: train.npy, seq_length: 48}
batch: {global_batch_size: 8, micro_batch_size: 1}
train: {max_steps: 12}
output: {dir: run, save_every_samples: 24}
YAML

# --- F8: a dead rank, without help from srun's -K (it is off by default)
for options in "" "-K0" "-K1"; do
  # shellcheck disable=SC2086
  run env TRIREME_FAULT=sigkill@rank1:step7 srun -n 2 --mpi=pmix $options "$bin/train_llama" --config "$work/run.yaml" --set "output.dir=dead$options"
  check "F8 srun --mpi=pmix $options: fails" fails
  check "F8 srun --mpi=pmix $options: within 10 s of the death" within 20
  check "F8 srun --mpi=pmix $options: rank, host and step are named" says "rank 1 on $(hostname) \(process [0-9]+\) died in step 7"
  check "F8 srun --mpi=pmix $options: no rank is left" no_ranks
done
run srun -n 2 --mpi=pmix "$bin/train_llama" --config "$work/run.yaml" --set output.dir=dead
check "F8: the same command goes on" ends_with 0

# --- F8 without PMIx: ranks that join through the key store, as GPU ranks under --mpi=none do. Training on CPU ranks is
# refused there.
driver=$bin/../tests/rank_driver
no_drivers() { ! pgrep -f "$driver" >/dev/null; }
for options in "" "-K0" "-K1"; do
  # shellcheck disable=SC2086
  run env TRIREME_FAULT=sigkill@rank1:step7 srun -n 3 --mpi=none $options "$driver" 400
  check "F8 srun --mpi=none $options: fails" fails
  check "F8 srun --mpi=none $options: within 10 s of the death" within 15
  check "F8 srun --mpi=none $options: rank, host and step are named" says "rank 1 on $(hostname) \(process [0-9]+\) died in step 7"
  check "F8 srun --mpi=none $options: no rank is left" no_drivers
done
run env TRIREME_HANG_SECONDS=3 TRIREME_FAULT=sigstop@rank1:step7 srun -n 3 --mpi=none -K0 "$driver" 400
check "F4 srun --mpi=none: a stopped rank ends all of them" fails_within 20
check "F4 srun --mpi=none: rank and collective are named" says 'rank 1 on .* never reached #[0-9]+ .*step 7.*stopped'
check "F4 srun --mpi=none: no rank is left" no_drivers
run srun -n 3 --mpi=none "$driver" 5
check "F8 srun --mpi=none: without a fault it ends well" ends_with 0
run srun -n 2 --mpi=none "$bin/train_llama" --config "$work/run.yaml" --set output.dir=none
check "F8 srun --mpi=none: CPU ranks that train are refused" ends_with 2
check "F8 srun --mpi=none: with the way out" says '2 ranks on CPUs need MPI.*srun --mpi=pmix'
check "F8 srun --mpi=none: nothing was made" test ! -e none

# --- F4 under srun: a stopped rank
run env TRIREME_HANG_SECONDS=3 TRIREME_FAULT=sigstop@rank1:step7 srun -n 2 --mpi=pmix "$bin/train_llama" --config "$work/run.yaml" --set output.dir=hung
check "F4 srun: fails within T + 10 s" fails_within 20
check "F4 srun: the stopped rank and the collective are named" says 'rank 1 on .* never reached #[0-9]+ .*step 7.*stopped'
check "F4 srun: no rank is left" no_ranks

export TRIREME_BUILD=${bin%/bin}

# --- F9: attempts. Rank 1 dies in step 7 of every attempt: the first writes a checkpoint, three more do not.
submit --ntasks-per-node=2 --time=60 --export=ALL,TRIREME_FAULT=sigkill@rank1:step7 -- "$work/run.yaml" --set output.dir=lives
check "F9: the job fails" fails
check "F9: four attempts: one with progress, three without" lines 4 'started .*, attempt [0-9]'
check "F9: it says why it stops" says 'no progress in 3 attempts .newest checkpoint: step-0*[36].'
check "F9: no rank is left" no_ranks
# A hang ends with 71 and is tried again; without the fault the job succeeds. x1 counts per process, so a file
# distinguishes the attempts.
submit --ntasks-per-node=2 --time=60 -- "$work/run.yaml" --set output.dir=lives
check "F9: without the fault the same job file ends well" ends_with 0
submit --ntasks-per-node=2 --time=60 -- "$work/run.yaml" --set optimizer.lr=fast
check "F9: a configuration error is not tried again" ends_with 2
check "F9: one attempt" lines 1 'started .*, attempt [0-9]'

# --- F7: the time limit. Two minutes, and SIGTERM 50 s before their end: Slurm sends it up to a minute early, and it
# kills a program that is still loading. Steps are slowed down so that the run is still going on then.
submit --ntasks-per-node=2 --time=2 --signal=TERM@50 --export=ALL,TRIREME_FAULT=sleep@step:rank0:0.3s -- "$work/run.yaml" --set output.dir=limit --set train.max_steps=2000 --set output.save_every_samples=null
check "F7: the job's exit code is 75" ends_with 75
check "F7: before the limit" within 120
check "F7: one checkpoint, at the step that the log names" test "$(newest limit)" = "step-$(printf %08d "$(sed -n 's/.*stopped by a signal after step \([0-9]*\).*/\1/p' "$out" | head -n 1)")"
check "F7: no second attempt so close to the limit" lines 1 'started .*, attempt [0-9]'
scontrol show job "$job" >"$out" 2>&1
check "F7: Slurm's record" says 'JobState=FAILED .*|ExitCode=75:0'
check "F7: no rank is left" no_ranks
run srun -n 2 --mpi=pmix "$bin/train_llama" --config "$work/run.yaml" --set output.dir=limit --set train.max_steps=2000 --set output.save_every_samples=null --dry-run
check "F7: the configuration is still the run's" ends_with 0

# --- F7, F9: with TRIREME_REQUEUE=1 the job queues itself again where its time is used up (here: always), and the count of attempts continues.
start_requeued() {  # NUMBER: waits for the requeue, without the two minutes that Slurm waits after one
  for ((i = 0; i < 400; i++)); do
    if [[ $(requeues) == "$1" && $(state) == PENDING ]] && ! pgrep -f "job0*$job/slurm_script" >/dev/null; then
      sleep 2  # the end of the last script must not be mistaken for the next one's
      scontrol update JobId="$job" StartTime=now
      return 0
    fi
    job_ended && return 1
    sleep 0.1
  done
  return 1
}
logged() { grep -qE -- "$1" "$work/job.log" 2>/dev/null; }
wait_for_log() { wait_until 40 logged "$1"; }  # PATTERN
submit_requeued() {  # FAULT DIRECTORY
  rm -f "$work/job.log"
  run env TRIREME_REQUEUE=1 TRIREME_LEAST_SECONDS=999999999 TRIREME_FAULT="$1" sbatch --parsable --output="$work/job.log" --ntasks-per-node=2 --time=60 \
    "$root/scripts/slurm/train_llama.sbatch" "$work/run.yaml" --set output.dir="$2" --set train.max_steps=2000
  job=$(tr -dc '0-9' <"$out")
  out=$work/job.log
}
submit_requeued sleep@step:rank0:0.3s again
check "F7: the job runs" wait_for_log 'step 2/2000'
start=$SECONDS
scancel --signal=TERM "$job"  # to the ranks, as before the time limit
check "F7: the job is queued again" start_requeued 1
seconds=$((SECONDS - start))
check "F7: its next attempt begins" wait_for_log 'attempt 1 after 1 requeues'
check "F7: and resumes from the step that the first one saved" wait_for_log "resuming after step $(sed -n 's/.*stopped by a signal after step \([0-9]*\).*/\1/p' "$work/job.log" | head -n 1) "
scancel "$job"
check "F7: a cancelled job ends" wait_until 40 job_ended
check "F7: and is not queued again" test "$(state) $(requeues)" = "CANCELLED 1"
check "F7: no rank is left" no_ranks
submit_requeued sigkill@rank1:step1 stuck
check "F9: an attempt without progress is queued again" start_requeued 1
check "F9: and once more" start_requeued 2
check "F9: the third is the last" wait_for_log 'no progress in 3 attempts .newest checkpoint: none.'
check "F9: the job ends" wait_until 40 job_ended
check "F9: as failed" test "$(state) $(requeues)" = "FAILED 2"
check "F9: only the log remains" test -z "$(ls -A "$work" | grep '^.trireme-')"

if ((failures)); then
  echo "$failures checks failed"
  exit 1
fi
