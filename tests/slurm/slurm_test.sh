#!/usr/bin/env bash
# Trireme under a real Slurm of one node: slurm_test.sh RANK_PROBE. Exit code 77: skipped.
set -uo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
# A second cluster numbers its jobs alike.
export TEST_CLUSTER_FIRST_JOB=$((1000 + SRANDOM % 60000000))
source "$root/tests/slurm/site.sh"
# Every job first asks the program for --print-config: answered here, because loading LibTorch takes most of the probe's time.
mkdir "$work/bin"
probe=$work/bin/rank_probe
cat >"$probe" <<SCRIPT
#!/bin/bash
if [[ \${!#} == --print-config ]]; then
  directory=nowhere
  for word; do [[ \$word == output.dir=* ]] && directory=\${word#*=}; done
  printf 'output:\n  dir: "%s"\n' "\$directory"
  exit 0
fi
exec "$1" "\$@"
SCRIPT
chmod +x "$probe"

# --- the cluster script itself
check "start is idempotent" test "$("$cluster" start 1 "$work/cluster" 2>/dev/null)" = "$start_output"

# --- who a rank is; two clusters at once, whose steps have the same numbers
second=$work/second
"$cluster" start 1 "$second" >/dev/null 2>"$work/second.log" || cat "$work/second.log"
beside() { SLURM_CONF=$second/slurm.conf timeout "$(patient 100)" srun -n 4 --mpi=pmix "$probe" >"$work/beside" 2>&1; }
for round in 1 2; do
  beside &
  run srun -n 4 --mpi=pmix "$probe"
  check "two clusters, round $round: 4 CPU ranks work" ends_with 0
  wait $!
  code=$? out=$work/beside
  check "two clusters, round $round: and 4 of the other" ends_with 0
done
check "two clusters: their jobs have the same number" test \
  "$(scontrol show job | grep -o '^JobId=[0-9]*' | tail -n 1)" = "$(SLURM_CONF=$second/slurm.conf scontrol show job | grep -o '^JobId=[0-9]*' | tail -n 1)"
"$cluster" stop "$second" >/dev/null 2>&1
out=$work/out
check "pmix: every rank knows itself and the sum" lines 4 'rank [0-3] of 4 on .*: MPI \(rank [0-3] of 4\), local rank [0-3] of 4, sum 10,'
run srun -n 1 --mpi=pmix ls "$work/cluster/tmp"
check "pmix: its folder of the step is the cluster's, not shared with other clusters" says '^spmix_appdir_'
run srun -n 2 --mpi=none "$probe"
check "none: 2 CPU ranks are refused" ends_with 2
check "none: the remedy is named" says '2 ranks on CPUs need MPI.*srun --mpi=none.*mpirun -n 2 or srun --mpi=pmix'
run srun -n 1 --mpi=none "$probe"
check "none: one CPU rank works" says 'rank 0 of 1 .*: alone,'
check "none: one CPU rank ends well" ends_with 0
run srun -n 2 --mpi=pmix env RANK=0 WORLD_SIZE=1 "$probe"
check "leftover RANK and WORLD_SIZE are refused" ends_with 2
check "leftover variables are named" says 'WORLD_SIZE=1 contradicts SLURM_STEP_NUM_TASKS=2'
run srun -n 2 --mpi=none env -u SLURM_PROCID "$probe"
check "a step without SLURM_PROCID is refused" says 'SLURM_PROCID is missing'

# --- a rank that fails ends the job
run srun -n 2 --mpi=pmix --kill-on-bad-exit=1 "$probe" --set exit_rank=1 --set exit_code=3 --set how=abort
check "abort: the job ends with the rank's exit code" ends_with 3
check "abort: within 20 s, its start included" fails_within 20
check "abort: the rank says why" says 'rank 1 on .*: the probe was told to fail'
run srun -n 2 --mpi=pmix "$probe" --set exit_rank=0 --set exit_code=4 --set how=abort
check "abort: does not need --kill-on-bad-exit" ends_with 4
run srun -n 2 --mpi=pmix --kill-on-bad-exit=1 "$probe" --set exit_rank=1 --set how=kill
check "kill -9: the job ends within 20 s, its start included" fails_within 20
run env TRIREME_HANG_SECONDS=3 srun -n 2 --mpi=pmix --kill-on-bad-exit=1 "$probe" --set exit_rank=1 --set how=stop
check "a stopped rank: the job ends" fails_within 30
check "a stopped rank: the waiting one says where it stands" says 'rank 0 on .*: no progress for [0-9]+ s .*rank 1 on .* never reached #[0-9]+ all_reduce\[5\] on world'

# --- the sbatch file
submit_probe() { TRIREME_PROGRAM=$probe submit --time=30 "$@"; }
submit_probe --ntasks-per-node=2 -- lora.yaml --set a.b=1
check "sbatch: the job ends well" ends_with 0
check "sbatch: the ranks ran with the arguments" lines 2 'rank [01] of 2 .* sum 3, config lora.yaml'
check "sbatch: the log says how it ended" says 'ended .* with exit code 0'
submit_probe -- lora.yaml
check "sbatch: one rank by default" says 'rank 0 of 1 .* config lora.yaml'
submit_probe --ntasks-per-node=2 -- lora.yaml --set exit_rank=1 --set exit_code=4 --set how=abort
check "sbatch: the job's exit code is the rank's" ends_with 4
submit_probe --
check "sbatch: a missing configuration is exit code 2" ends_with 2
check "sbatch: usage is printed" says 'usage: sbatch train_llama.sbatch'
batch env TRIREME_BUILD="$work" sbatch --parsable --output="$work/job.log" "$root/scripts/slurm/train_llama.sbatch" lora.yaml
check "sbatch: a missing program is exit code 2" ends_with 2
batch env TRIREME_PROGRAM=/bin/true TRIREME_LIVES_WITHOUT_PROGRESS=1 sbatch --parsable --output="$work/job.log" "$root/scripts/slurm/train_llama.sbatch" lora.yaml
check "sbatch: a step that ends with 0 without its ranks is not taken for done" ends_with 71
check "sbatch: and the log says so" grep -q 'srun ended with 0, but the ranks with nothing' "$work/job.log"
# finished.json is what a run writes last.
cat >"$work/leaver" <<'END'
#!/usr/bin/env bash
folder=${0%/*}/left
if [[ " $* " == *" --print-config "* ]]; then printf 'output:\n  dir: "%s"\n' "$folder" && exit 0; fi
mkdir -p "$folder" && echo '{}' >"$folder/finished.json.tmp" && mv "$folder/finished.json.tmp" "$folder/finished.json"
kill -KILL $$
END
chmod +x "$work/leaver"
for run in first longer; do
  batch env TRIREME_PROGRAM="$work/leaver" sbatch --parsable --output="$work/job.log" "$root/scripts/slurm/train_llama.sbatch" lora.yaml
  check "sbatch: a rank that dies after its run has finished fails nothing ($run)" ends_with 0
done

# SIGTERM as before the time limit: Slurm sends it to the steps, not to the batch shell.
run env TRIREME_PROGRAM="$probe" TRIREME_LEAST_SECONDS=999999 sbatch --parsable --output="$work/term.log" --ntasks-per-node=2 \
  "$root/scripts/slurm/train_llama.sbatch" lora.yaml --set wait_for_term=100
job=$(cat "$out")
both_ranks_wait() { [[ $(grep -c 'rank . of 2' "$work/term.log" 2>/dev/null) == 2 ]]; }
out=$work/term.log
check "sbatch: both ranks wait for SIGTERM" wait_until 60 both_ranks_wait
scancel --signal=TERM "$job"
check "sbatch: the job ends" wait_until 60 job_ended
check "sbatch: SIGTERM reaches every rank" says '2 ranks got SIGTERM'
check "sbatch: the exit code 75 stays visible" says 'ended .* with exit code 75'
check "sbatch: Slurm's record has it too" grep -q 'ExitCode=75:0' <(scontrol show job "$job")

# --- the pre-training files, in a folder with a blank, with an nsys that says what it was asked for
mkdir -p "$work/fake_nsys" "$work/a folder"
cp -r "$root/scripts/slurm" "$work/a folder/"
printf '#!/bin/bash\necho "nsys rank $SLURM_PROCID: $*"\nwhile [[ $1 != *rank_probe* ]]; do shift; done\nexec "$@"\n' >"$work/fake_nsys/nsys"
chmod +x "$work/fake_nsys/nsys"
pretrain() {  # FILE OPTIONS…
  local file=$1
  shift
  rm -f "$work/job.log"
  batch env TRIREME_PROGRAM="$probe" PATH="$work/fake_nsys:$PATH" "$@" sbatch --parsable --output="$work/job.log" --time=30 -N 1 \
    --ntasks-per-node=2 --gpus-per-node=0 "$work/a folder/slurm/pretrain/$file" llama.yaml --set a.b=1
  cat "$work/job.log" >>"$out" 2>/dev/null
}
pretrain 01.pretrain.sbatch
check "01.pretrain: ends well" ends_with 0
check "01.pretrain: the ranks ran with the arguments" lines 2 'rank [01] of 2 .* sum 3, config llama.yaml'
pretrain 03.pretrain-nsys.sbatch TRIREME_NSYS_OUTPUT="$work"
check "03.pretrain-nsys: ends well" ends_with 0
check "03.pretrain-nsys: both ranks ran" lines 2 'rank [01] of 2 .* sum 3, config llama.yaml'
check "03.pretrain-nsys: one report of the node" lines 1 'nsys rank [01]: profile .*--delay=30 --duration=1200|nsys rank 0: profile .*report_llama2_job[0-9]+_rank0_on_'
pretrain 03.pretrain-nsys.sbatch TRIREME_NSYS_RANKS=all TRIREME_NSYS_CAPTURE=range
check "03.pretrain-nsys: every rank, by range" lines 2 'nsys rank [01]: profile .*--capture-range=cudaProfilerApi'
pretrain 02.pretrain-container.sbatch
check "02.pretrain-container: an image is required" fails_within 60
check "02.pretrain-container: and named" says 'CONT_FILE: set it to the container image'

# --- the MLPerf pair
mkdir -p "$work/mlperf"
export DATADIR="$work/my data" MODEL=$work/model LOGDIR="$work/mlperf/the results" TRIREME_BUILD=$work TRIREME_PROGRAM=$probe
batch bash -c 'source "$0/scripts/slurm/config_H200_1x4x2.sh" && export DGXNGPU=2 NEXP=2 SEED_BASE=7 DATESTAMP=stamp CLEAR_CACHES=0 &&
  sbatch --parsable --output="$LOGDIR.log" -N 1 --ntasks-per-node=2 -t 30 "$1/slurm/run.sub"' "$root" "$work/a folder"
check "run.sub: ends well" ends_with 0
for i in 1 2; do
  cp "$LOGDIR/stamp_$i.log" "$out" 2>/dev/null || : >"$out"
  check "run.sub: experiment $i ran on 2 ranks" lines 2 "rank [01] of 2 .* config $work/a folder/slurm/mlperf_llama2_70b_lora.yaml"
  check "run.sub: experiment $i has its markers" lines 4 '(EXPERIMENT|RUNANDTIME)_(START|STOP) [0-9]+$'
done
batch bash -c 'source "$0/scripts/slurm/config_H200_1x4x2.sh" && export DGXNGPU=2 NEXP=3 DATESTAMP=bad CLEAR_CACHES=0 &&
  EXTRA_SET="exit_rank=1 exit_code=3 how=abort" sbatch --parsable --output="$LOGDIR.log" -N 1 --ntasks-per-node=2 -t 30 "$0/scripts/slurm/run.sub"' "$root"
check "run.sub: a run's exit code is the job's" ends_with 3
check "run.sub: bad data is not tried again" test ! -e "$LOGDIR/bad_2.log"
# --- job arrays: the last task's SLURM_JOB_ID names the whole array, and scontrol shows all tasks under it
array_of_two() {  # FILE ARGUMENTS…
  rm -f "$work"/task_?.log
  sed -i '/^#SBATCH --exclusive/d' "$1"  # both tasks at once
  run env -C "$work" sbatch --parsable --array=0-1 --output="$work/task_%a.log" -N 1 --ntasks-per-node=2 --gpus-per-node=0 -t 30 "$@"
  array=$(tr -dc '0-9' <"$out") out=$work/task_1.log
  check "array: both tasks wait for SIGTERM" wait_until 60 both_tasks_wait
}
both_tasks_wait() { [[ $(grep -c 'rank . of 2' "$work/task_0.log" 2>/dev/null) == 2 && $(grep -c 'rank . of 2' "$work/task_1.log" 2>/dev/null) == 2 ]]; }
once_more() { [[ $(job=${array}_1 requeues) == 1 ]]; }
sibling_runs() { [[ $(job=${array}_0 && echo "$(state) $(requeues)") == "RUNNING 0" ]] && ! grep -q 'got SIGTERM' "$work/task_0.log"; }
TRIREME_REQUEUE=1 array_of_two "$work/a folder/slurm/pretrain/01.pretrain.sbatch" llama.yaml --set wait_for_term=100
scancel --signal=TERM "${array}_1"
check "array: the task that got SIGTERM is queued again" wait_until 60 once_more
check "array: it said so" wait_until 60 says 'queued again as job'
check "array: the other task runs on" sibling_runs
scancel --quiet "$array"
EXTRA_SET=wait_for_term=100 WALLTIME_RUNANDTIME=5 DGXSYSTEM=test DGXNGPU=2 CLEAR_CACHES=0 array_of_two "$work/a folder/slurm/run.sub"
scancel --batch --signal=TERM "${array}_1"
check "array, run.sub: SIGTERM to a task's shell ends its ranks" wait_until 60 says 'experiment 1 ended with exit code 75'
check "array, run.sub: the other task runs on" sibling_runs
scancel --quiet "$array"

# The result of dropping the caches reaches the trainer, and the checker's verdict is printed.
printf '#!/bin/bash\n[[ $* == *--print-config* ]] || echo "caches cleared: ${TRIREME_CACHES_CLEARED:-nobody knows}"\n' >"$work/say_caches"
chmod +x "$work/say_caches"
mkdir -p "$work/fake/mlperf_logging/compliance_checker"
touch "$work/fake/mlperf_logging/__init__.py" "$work/fake/mlperf_logging/compliance_checker/__init__.py"
echo 'import os, sys; print("a rule is broken"); sys.exit(int(os.environ["VERDICT"]))' >"$work/fake/mlperf_logging/compliance_checker/__main__.py"
for outcome in true false; do
  batch env VERDICT="$([[ $outcome == true ]] && echo 0 || echo 1)" bash -c 'source "$0/scripts/slurm/config_H200_1x4x2.sh" &&
    export DGXNGPU=2 NEXP=1 DATESTAMP=caches_$2 DROPCACHE_CMD=$2 TRIREME_PROGRAM=$1/say_caches PYTHONPATH=$1/fake &&
    sbatch --parsable --output="$LOGDIR.log" -N 1 --ntasks-per-node=2 -t 30 "$0/scripts/slurm/run.sub"' "$root" "$work" "$outcome"
  cp "$LOGDIR/caches_${outcome}_1.log" "$out" 2>/dev/null || : >"$out"
  check "run.sub: the ranks learn what became of the caches ($outcome)" lines 2 "caches cleared: $outcome"
  cp "$LOGDIR.log" "$out"
  check "run.sub: the verdict is printed ($outcome)" says "compliance of .*: $([[ $outcome == true ]] && echo PASSED || echo FAILED)"
done
check "run.sub: so are the reasons" says 'a rule is broken'
batch env -u DATADIR sbatch --parsable --output="$work/job.log" "$root/scripts/slurm/run.sub"
check "run.sub: a missing variable is an error" fails_within 30

# --- and the end of it
run "$cluster" stop "$work/cluster"
check "stop ends well" ends_with 0
check "stop takes less than 20 s" within 20
pgrep -af "^[^ ]*(slurm|munge|unshare).* $work/cluster" >"$out"
check "stop leaves no process" test ! -s "$out"
check "status fails once it is stopped" bash -c '! "$0" status "$1" 2>/dev/null' "$cluster" "$work/cluster"

if ((failures)); then
  echo "$failures checks failed"
  exit 1
fi
