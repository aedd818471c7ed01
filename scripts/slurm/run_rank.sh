# What run_and_time.sh and run_and_time_bert.sh share; they source it.
# shellcheck shell=bash

# As the trainer finds them: torchrun's variables, mpirun's, srun's.
rank=${RANK:-${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${SLURM_PROCID:-0}}}}
# shellcheck disable=SC2034  # for run_and_time_bert.sh
ranks=${WORLD_SIZE:-${OMPI_COMM_WORLD_SIZE:-${SLURM_STEP_NUM_TASKS:-1}}}

# run_rank NAME PROGRAM [argument …]   runs the trainer of this rank and exits with its code; rank 0 prints the times and
# a RESULT line with NAME. A signal to this shell reaches the trainer, and the shell waits until it has saved.
# BINDCMD: a prefix that binds the rank to cores near its GPU, if the site has one.
run_rank() {
  local name=$1 start end trainer code
  shift
  start=$(date +%s)
  if [[ $rank == 0 ]]; then echo "RUNANDTIME_START $start"; fi
  # shellcheck disable=SC2086
  ${BINDCMD:-} "$@" &
  trainer=$!
  # Without a trap a signal would end this shell before the trainer has saved.
  # shellcheck disable=SC2064  # the trainer's number as it is now
  trap "kill -TERM $trainer 2>/dev/null || true" TERM INT USR1
  while :; do
    code=0
    wait "$trainer" || code=$?
    kill -0 "$trainer" 2>/dev/null || break
  done
  if [[ $rank == 0 ]]; then
    end=$(date +%s)
    echo "RUNANDTIME_STOP $end"
    echo "RESULT,$name,,$((end - start)),${USER:-unknown},$(date -u +'%Y-%m-%dT%H:%M:%SZ')"
  fi
  exit $code
}
