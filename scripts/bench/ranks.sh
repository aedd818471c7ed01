# To be sourced. run_ranks RANKS COMMAND … runs a command as that many processes of this host: one as it is, several with mpirun, or with
# LAUNCH=env as processes that get RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The project is in root, the binaries (BIN) in bin, and
# python is the one to use (TRIREME_PYTHON). The scripts stay where the caller stands: relative names are the caller's.
# shellcheck shell=bash disable=SC2034

root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
bin=${BIN:-$root/build/release/bin}
python=${TRIREME_PYTHON:-$(if [ -x "$root/.venv/bin/python" ]; then echo "$root/.venv/bin/python"; else command -v python3; fi)}

run_ranks() {
  local ranks=$1 rank pid port=$((20000 + RANDOM % 20000)) pids=() root=()
  shift
  if [ "$ranks" -eq 1 ]; then
    "$@"
  elif [ "${LAUNCH:-mpirun}" = env ]; then
    for ((rank = 0; rank < ranks; ++rank)); do
      RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$@" &
      pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || return; done
  else
    if [ "$(id -u)" -eq 0 ]; then root=(--allow-run-as-root); fi
    mpirun -n "$ranks" --oversubscribe --bind-to none "${root[@]}" "$@"
  fi
}
