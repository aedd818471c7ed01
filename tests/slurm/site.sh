# Sourced by the tests under a real Slurm: `root` must be the project's folder. Starts a cluster of $NODES nodes (1) that
# ends with the script, or exits with 77 and a message about what is missing. Then: run COMMAND… keeps the last command's
# $code, $seconds and output ($out); check NAME CONDITION… counts $failures. RUN_SECONDS: limit of one command (100). With
# several nodes run starts commands on the controller, and the nodes share $work. batch COMMAND… runs one that submits a job
# and waits for its end; state, requeues and job_ended tell about $job.
cluster=$root/scripts/slurm/test_cluster.sh
PATH=$PATH:/usr/sbin:/sbin

skip() {
  echo "SKIPPED: $*"
  exit 77
}
# If the tests run inside a Slurm job, its variables must not make the tests look like a step of that job.
for name in $(compgen -e | grep -E '^(SLURM|SBATCH|SRUN|PMI|OMPI_|RANK$|WORLD_SIZE$|LOCAL_RANK$|MASTER_)'); do unset "$name"; done

work=$(mktemp -d)
failures=0 code=0 seconds=0 out=/dev/null on_controller=()
# The build and the sources may lie below /tmp, too.
export TEST_CLUSTER_OWNER=$$ TEST_CLUSTER_SHARE=$work:${bin:-$root}:$root
trap '"$cluster" stop "$work/cluster" >/dev/null 2>&1; rm -rf "$work"' EXIT
start_output=$("$cluster" start "${NODES:-1}" "$work/cluster") || exit $?
eval "$start_output"
if ((${NODES:-1} > 1)); then on_controller=("$cluster" exec); fi
srun --mpi=list 2>&1 | grep -q pmix || skip "this Slurm has no PMIx plugin (package libpmix2)"

# $1 seconds of an idle machine, on this one: beside other work everything takes longer.
patient() {
  local load running cores
  read -r load _ _ running _ </proc/loadavg
  load=${load%.*} running=${running%/*} cores=$(nproc)
  echo $(($1 * (1 + (load > running ? load : running) / cores)))
}
within() { ((seconds < $(patient "$1"))); }
fails_within() { ((code != 0)) && within "$1"; }

check() {
  local name=$1
  shift
  if "$@"; then
    echo "ok      $name ($seconds s)"
  else
    echo "FAILED  $name: $*; exit code $code after $seconds s; output:"
    tail -n 60 "$out" | sed 's/^/        | /'
    failures=$((failures + 1))
  fi
}
run() {
  out=$work/out
  local start=$SECONDS
  timeout -k 5 "$(patient "${RUN_SECONDS:-100}")" "${on_controller[@]}" "$@" >"$out" 2>&1
  code=$?
  seconds=$((SECONDS - start))
}
control() { timeout "$(patient 20)" "${on_controller[@]}" "$@"; }
wait_until() {  # SECONDS CONDITION…
  local limit=$1 start=$SECONDS
  shift
  until "$@"; do
    ((SECONDS - start < $(patient "$limit"))) || return 1
    sleep 0.2
  done
  seconds=$((SECONDS - start))
}
job_field() { control scontrol show job "$job" 2>/dev/null | sed -n "s/.*\\b$1=\\([A-Z0-9:_]*\\).*/\\1/p" | head -n 1; }
state() { job_field JobState; }
requeues() { job_field Restarts; }
# An answer that Slurm does not give in time is no end.
job_ended() { [[ $(state) =~ ^(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY)$ ]]; }
# sbatch --parsable with its environment. $code is the job's, 128 + N after signal N. (sbatch --wait asks Slurm after 2, 10
# and 42 s only.)
batch() {
  local start=$SECONDS
  run "$@"
  ((code == 0)) || return
  job=$(head -n 1 "$out" | tr -dc '0-9')
  if wait_until "${RUN_SECONDS:-100}" job_ended; then
    IFS=: read -r code signal <<<"$(job_field ExitCode)"
    ((signal == 0)) || code=$((128 + signal))
  else
    code=124
  fi
  seconds=$((SECONDS - start))
}
# $work, with a model and rows for $bin/train_llama, becomes the current folder.
small_run() {
  cd "$work" || exit 1
  "$bin/trireme" init-model --hidden-size 32 --layers 2 --heads 4 --kv-heads 2 --intermediate-size 64 --vocab-size 120 --max-positions 128 \
    --output base >/dev/null 2>&1 || exit 1
  "$python" -c "import numpy as np; np.save('train.npy', np.random.default_rng(5).integers(0, 120, size=(40, 48)).astype(np.int32))" ||
    skip "$python has no numpy; scripts/setup.sh installs it"
}
# OPTIONS… -- ARGUMENTS…: the arrays options and arguments.
split_arguments() {
  options=()
  while [[ $1 != -- ]]; do
    options+=("$1")
    shift
  done
  shift
  arguments=("$@")
}
# OPTIONS of sbatch… -- ARGUMENTS of train_llama.sbatch… with its environment. $out has the job's log, too.
submit() {
  local options arguments
  split_arguments "$@"
  rm -f "$work/job.log"
  batch sbatch --parsable --output="$work/job.log" "${options[@]}" "$root/scripts/slurm/train_llama.sbatch" "${arguments[@]}"
  cat "$work/job.log" >>"$out" 2>/dev/null
}
says() { grep -qE -- "$1" "$out"; }
ends_with() { [[ $code == "$1" ]]; }
lines() { [[ $(grep -cE -- "$2" "$out") == "$1" ]]; }
