#!/usr/bin/env bash
# A real Slurm cluster of one node, this machine, for tests: munged, slurmctld and slurmd of the distribution's packages
# (slurm-wlm, munge; libpmix2 for srun --mpi=pmix), with all state and configuration in one directory. Needs root.
#
#   eval "$(scripts/slurm/one_node_cluster.sh start [DIR])"   starts it (or finds it running) and sets SLURM_CONF
#   scripts/slurm/one_node_cluster.sh status [DIR] output of sinfo; fails when the cluster does not run
#   scripts/slurm/one_node_cluster.sh stop [DIR]              cancels all jobs and ends every process; keeps the logs
#
# DIR defaults to trireme-slurm in $XDG_RUNTIME_DIR, $TMPDIR or /tmp. The node offers at least four CPUs, however few there are.
set -euo pipefail

command_name=${1:-}
dir=${2:-${XDG_RUNTIME_DIR:-${TMPDIR:-/tmp}}/trireme-slurm}
conf=$dir/slurm.conf
PATH=$PATH:/usr/sbin:/sbin

fail() {
  echo "one_node_cluster.sh: $*" >&2
  exit 1
}

is_running() { pid_of slurmctld >/dev/null && pid_of slurmd >/dev/null && pid_of munged >/dev/null && answers; }

# The process of pid file NAME.pid, if it runs and is a NAME.
pid_of() {
  local pid
  pid=$(cat "$dir/$1.pid" 2>/dev/null) || return 1
  [[ -n $pid && $(cat "/proc/$pid/comm" 2>/dev/null) == "$1" ]] && echo "$pid"
}

wait_for() {  # SECONDS COMMAND...
  local tries=$(($1 * 10))
  shift
  until "$@"; do
    ((tries-- > 0)) || return 1
    sleep 0.1
  done
}

free_port() {  # after PORT
  local port=$1
  while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
  echo "$port"
}

is_idle() { [[ $(SLURM_CONF=$conf sinfo -h -o %T 2>/dev/null) == idle ]]; }
answers() { SLURM_CONF=$conf timeout 5 sinfo -h >/dev/null 2>&1; }

write_configuration() {
  local host cpus memory controller_port node_port
  host=$(hostname -s)
  cpus=$(nproc)
  ((cpus >= 4)) || cpus=4
  memory=$(awk '/MemTotal/ {print int($2 / 1024)}' /proc/meminfo)
  controller_port=$(free_port $((30000 + ($$ * 13) % 20000)))
  node_port=$(free_port $((controller_port + 1)))
  cat >"$conf" <<EOF
ClusterName=trireme
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$controller_port
SlurmdPort=$node_port
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
PlugStackConfig=$dir/plugstack.conf
# Containers have no cgroups for tracking processes, and no cores to pin them to.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
# Scheduling interval: a job that waits for the end of another one starts soon, not after a minute.
SchedulerParameters=sched_interval=2,bf_interval=2
# More CPUs than the machine has: ranks share them.
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
KillWait=5
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=$memory State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
EOF
  : >"$dir/plugstack.conf"
  # Since 23.11 slurmd starts a cgroup plugin even when nothing uses it.
  if [[ $(slurmctld -V) =~ ([0-9]+)\.([0-9]+) ]] && ((BASH_REMATCH[1] * 100 + 10#${BASH_REMATCH[2]} >= 2311)); then
    echo 'CgroupPlugin=disabled' >"$dir/cgroup.conf"
  fi
}

start_daemon() {  # NAME COMMAND...
  local name=$1
  shift
  pid_of "$name" >/dev/null && return
  rm -f "$dir/$name.pid"
  "$@" >"$dir/$name.start" 2>&1 || fail "$name does not start: $(tail -n 3 "$dir/$name.start" "$dir/$name.log" 2>/dev/null)"
  wait_for 20 pid_of "$name" >/dev/null || fail "$name wrote no pid file: $(tail -n 3 "$dir/$name.log" 2>/dev/null)"
}

start() {
  [[ $(id -u) == 0 ]] || fail "slurmd must run as root to start steps"
  local program
  for program in munged slurmctld slurmd srun; do
    command -v "$program" >/dev/null || fail "$program is missing: apt-get install slurm-wlm munge libpmix2"
  done
  ((${#dir} <= 90)) || fail "$dir is too long for the name of a socket in it"
  if is_running; then
    echo "one-node Slurm already runs in $dir" >&2
  else
    [[ ! -e $dir || -O $dir ]] || fail "$dir belongs to another user"
    stop
    rm -rf "$dir"
    # Only root may read the key. Slurm's own state must stay readable for its steps.
    mkdir -p "$dir/state" "$dir/spool"
    chmod 755 "$dir"
    (umask 077 && head -c 128 /dev/urandom >"$dir/munge.key")
    write_configuration
    export SLURM_CONF=$conf
    # --force: munged expects its own user and a directory that only root can write to.
    start_daemon munged munged --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/munged.pid" \
      --log-file="$dir/munged.log" --seed-file="$dir/munged.seed"
    start_daemon slurmctld slurmctld -f "$conf" -c
    start_daemon slurmd slurmd -f "$conf"
    wait_for 60 is_idle || fail "the node is not idle after 60 s: $(sinfo -N -o '%n %T %E' 2>&1) $(tail -n 3 "$dir/slurmd.log")"
    echo "one-node Slurm runs in $dir: $(sinfo -h -o '%n, %c CPUs, %T')" >&2
  fi
  echo "export SLURM_CONF=$conf"
}

# Daemons of this cluster, or those of one name: all have this SLURM_CONF in their environment.
members() {
  local process name
  for process in /proc/[0-9]*; do
    { read -r name <"$process/comm"; } 2>/dev/null || continue
    [[ $name =~ ^(${1:-slurmctld|slurmscriptd|slurmd|slurmstepd|munged})$ ]] || continue
    if grep -qszxF "SLURM_CONF=$conf" "$process/environ"; then echo "${process#/proc/}"; fi
  done
}

no_members() { [[ -z $(members "$@") ]]; }

stop() {
  [[ -d $dir ]] || return 0
  local name pid
  if is_running; then
    SLURM_CONF=$conf scancel --user="$(id -un)" --quiet 2>/dev/null || true
    SLURM_CONF=$conf scancel --user="$(id -un)" --quiet --signal=KILL --full 2>/dev/null || true
    wait_for 15 no_members slurmstepd || true
  fi
  for name in slurmd slurmctld munged; do
    pid=$(pid_of "$name") || continue
    kill -TERM "$pid" 2>/dev/null || true
    wait_for 10 no_members "$name" || true
  done
  # slurmctld's helper process ends shortly after it; processes that remain are killed.
  wait_for 5 no_members || true
  for pid in $(members); do kill -KILL "$pid" 2>/dev/null || true; done
  wait_for 5 no_members || fail "these processes do not end: $(members | tr '\n' ' ')"
}

case $command_name in
  start) start ;;
  stop) stop ;;
  status)
    is_running || fail "no cluster runs in $dir"
    SLURM_CONF=$conf sinfo -N -o '%n %T %c CPUs %m MiB'
    ;;
  *) fail "usage: one_node_cluster.sh start|stop|status [DIR]" ;;
esac
