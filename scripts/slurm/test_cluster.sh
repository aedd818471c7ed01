#!/usr/bin/env bash
# A real Slurm cluster on this machine, for tests: munged, slurmctld and slurmd of the distribution's packages (slurm-wlm,
# munge; libpmix2 for srun --mpi=pmix), with all state and configuration in one directory. Needs root and the right to make
# namespaces (CAP_SYS_ADMIN); exits with 77 and a sentence where something is missing.
#
#   eval "$(scripts/slurm/test_cluster.sh start [N] [DIR])"   starts it (or finds it running); sets SLURM_CONF, TEST_CLUSTER
#   scripts/slurm/test_cluster.sh exec COMMAND…         runs COMMAND where srun, sbatch and mpirun reach the nodes
#   scripts/slurm/test_cluster.sh node K COMMAND…       runs COMMAND on node K
#   scripts/slurm/test_cluster.sh link K down|up        cuts the network of node K, or mends it
#   scripts/slurm/test_cluster.sh power-off K           node K vanishes: its link, then every process on it
#   scripts/slurm/test_cluster.sh status [DIR]          output of sinfo; fails when the cluster does not run
#   scripts/slurm/test_cluster.sh stop [DIR]            cancels all jobs and ends every process; keeps the logs
#
# One node (the default) is this machine itself, under its own name and on its loopback interface, with a /dev/shm of its
# own. Clusters run beside each other: jobs are numbered from a random number on, since programs name files in shared
# memory and /tmp by the job, and ports are random. Of several nodes each has its own network, host name, IPC objects, process numbers, /tmp and /dev/shm; a bridge connects node1 … nodeN and the
# controller, and nothing routes beyond it. Directories below /tmp that the nodes share: DIR, and those in
# TEST_CLUSTER_SHARE (separated by colons). `mpirun --host node1:2,node2:2` works under exec.
#
# A process of this script holds the cluster; when it ends, by whatever signal, the kernel ends all others and removes the
# namespaces. With TEST_CLUSTER_OWNER=PID it ends soon after that process. DIR defaults to $TEST_CLUSTER, then trireme-slurm
# in $XDG_RUNTIME_DIR, $TMPDIR or /tmp. A node offers at least four CPUs, however few there are.
set -euo pipefail

self=$(readlink -f "${BASH_SOURCE[0]}")
command_name=${1:-}
shift || true
default_dir=${TEST_CLUSTER:-${XDG_RUNTIME_DIR:-${TMPDIR:-/tmp}}/trireme-slurm}
PATH=$PATH:/usr/sbin:/sbin
network=10.213.0  # the nodes have .1, .2, …, the controller has .254

fail() {
  echo "test_cluster.sh: $*" >&2
  exit 1
}
skip() {
  echo "SKIPPED: $*" >&2
  exit 77
}
use_dir() {
  dir=$1
  conf=$dir/slurm.conf
  nodes=$(cat "$dir/nodes" 2>/dev/null || echo 0)
}

wait_for() {  # SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS <= end)) || return 1
    sleep 0.05
  done
}

# Process NAME (holder, controller, node3) of the cluster, by the numbers of this process's namespace.
pid_of() {
  local pid
  pid=$(cat "$dir/$1.pid" 2>/dev/null) && [[ -n $pid ]] && kill -0 "$pid" 2>/dev/null && echo "$pid"
}
# Runs a command on the controller. One node shares this machine's network: no other place is needed.
controller() {
  if ((nodes == 1)); then
    SLURM_CONF=$conf "$@"
  else
    SLURM_CONF=$conf nsenter --target "$(pid_of controller)" --net --mount --uts --wdns="$PWD" "$@"
  fi
}
on_node() {  # K COMMAND...
  local pid
  pid=$(pid_of "node$1") || fail "node$1 does not run"
  shift
  SLURM_CONF=$conf nsenter --target "$pid" --net --mount --uts --ipc --pid --wdns="$PWD" "$@"
}
is_running() { pid_of holder >/dev/null && pid_of controller >/dev/null && controller timeout 20 sinfo -h >/dev/null 2>&1; }
all_idle() {
  pid_of controller >/dev/null || exit 1
  [[ $(controller timeout 20 sinfo -h -N -o %T 2>/dev/null | sort | uniq -c | xargs) == "$nodes idle" ]]
}
begun() { [[ -e $dir/ready ]] || is_gone "$1"; }
is_gone() { ! kill -0 "$1" 2>/dev/null; }

# A random port that nobody listens on, below those that the kernel gives to clients.
free_port() {
  local port=0
  until ((port > 0)) && ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((10000 + SRANDOM % 20000)); done
  echo "$port"
}

write_configuration() {
  local host address cpus memory controller_port=6817 node_port=6818 k
  cpus=$(nproc)
  ((cpus >= 4)) || cpus=4
  memory=$(awk '/MemTotal/ {print int($2 / 1024)}' /proc/meminfo)
  if ((nodes == 1)); then
    host=$(hostname -s) address=127.0.0.1
    controller_port=$(free_port)
    until node_port=$(free_port) && ((node_port != controller_port)); do :; done
  else
    host=controller address=$network.254
    echo "127.0.0.1 localhost
$network.254 controller" >"$dir/hosts"
    for ((k = 1; k <= nodes; ++k)); do echo "$network.$k node$k"; done >>"$dir/hosts"
  fi
  cat >"$conf" <<END
ClusterName=trireme
SlurmctldHost=$host($address)
SlurmctldPort=$controller_port
SlurmdPort=$node_port
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
FirstJobId=${TEST_CLUSTER_FIRST_JOB:-$((1000 + SRANDOM % 60000000))}
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd-%n.log
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
# On a loaded machine daemons answer late.
MessageTimeout=${TEST_CLUSTER_NODE_SECONDS:-60}
# A node that does not answer for so long is down, and its jobs end.
SlurmdTimeout=${TEST_CLUSTER_NODE_SECONDS:-120}
END
  for ((k = 1; k <= nodes; ++k)); do
    ((nodes == 1)) || host=node$k address=$network.$k
    echo "NodeName=$host NodeAddr=$address CPUs=$cpus RealMemory=$memory State=UNKNOWN" >>"$conf"
    mkdir -p "$dir/spool-$host"
  done
  echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP" >>"$conf"
  # PMIx makes spmix_appdir_UID_JOB.STEP in this folder (/tmp by default) and fails where another cluster's job has it. Of
  # several nodes each has its own /tmp.
  if ((nodes == 1)); then
    mkdir -p "$dir/tmp"
    echo "TmpFS=$dir/tmp" >>"$conf"
  fi
  : >"$dir/plugstack.conf"
  # Since 23.11 slurmd starts a cgroup plugin even when nothing uses it.
  if [[ $(slurmctld -V) =~ ([0-9]+)\.([0-9]+) ]] && ((BASH_REMATCH[1] * 100 + 10#${BASH_REMATCH[2]} >= 2311)); then
    echo 'CgroupPlugin=disabled' >"$dir/cgroup.conf"
  fi
}

# One attempt to start COUNT nodes in $dir, from nothing.
begin() {
  stop "$dir"
  rm -rf "$dir"
  # Only root may read the key. Slurm's own state must stay readable for its steps.
  mkdir -p "$dir/state"
  chmod 755 "$dir"
  (umask 077 && head -c 128 /dev/urandom >"$dir/munge.key")
  echo "$1" >"$dir/nodes"
  nodes=$1
  write_configuration
  export SLURM_CONF=$conf
  setsid "$self" hold "$dir" </dev/null >"$dir/holder.log" 2>&1 &
  local holder=$!
  wait_for 60 begun "$holder" || true
  if [[ -e $dir/ready ]] && (wait_for 180 all_idle); then return 0; fi
  kill -KILL "$holder" 2>/dev/null || true
  return 1
}

start() {  # [N] [DIR]
  local count=1 program attempt
  if [[ ${1:-} =~ ^[0-9]+$ ]]; then
    count=$1
    shift
  fi
  use_dir "${1:-$default_dir}"
  ((count >= 1 && count <= 100)) || fail "start takes 1 to 100 nodes, not $count"
  [[ $(id -u) == 0 ]] || skip "a Slurm for tests needs root, and this is $(id -un)"
  for program in munged slurmctld slurmd srun; do
    command -v "$program" >/dev/null || skip "$program is not installed (packages slurm-wlm, munge, libpmix2)"
  done
  ((count == 1)) || command -v ip >/dev/null || skip "ip is not installed (package iproute2)"
  unshare --pid --fork --mount --net --uts --ipc true 2>/dev/null || skip "this machine allows no namespaces (CAP_SYS_ADMIN is missing)"
  ((${#dir} <= 90)) || fail "$dir is too long for the name of a socket in it"
  if is_running; then
    ((nodes == count)) || fail "a cluster of $nodes nodes already runs in $dir: stop it first"
    echo "Slurm already runs in $dir" >&2
  else
    [[ ! -e $dir || -O $dir ]] || fail "$dir belongs to another user"
    # Another program may take a port between the look at it and the daemon's start.
    for attempt in 1 2 3; do
      begin "$count" && break
      tail -q -n 3 "$dir"/*.log >&2
      ((attempt < 3)) || fail "the nodes are not idle after 180 s; the logs are in $dir"
      echo "test_cluster.sh: once more, with other ports" >&2
    done
    echo "Slurm runs in $dir: $(controller sinfo -h -o '%D node(s), %c CPUs each, %T')" >&2
  fi
  echo "export SLURM_CONF=$conf TEST_CLUSTER=$dir OMPI_MCA_plm_rsh_agent='$self rsh'"
}

# --- the process that holds the cluster: `hold DIR`
# Starts `$self PLACE DIR NAME` as process 1 of new namespaces, which end with this process.
begin_place() {  # NAME, then options of unshare
  local name=$1
  shift
  rm -f "$dir/$name.pid"
  setpriv --pdeathsig KILL unshare --pid --fork --kill-child "$@" "$self" place "$dir" "$name" </dev/null >"$dir/$name.log" 2>&1 &
  wait_for 60 pid_of "$name" >/dev/null || fail "$name does not start: $(cat "$dir/$name.log")"
}

hold() {
  use_dir "$1"
  local k turn
  echo $$ >"$dir/holder.pid"
  if ((nodes == 1)); then
    begin_place controller --mount
  else
    begin_place controller --mount --net --uts
    for ((k = 1; k <= nodes; ++k)); do
      begin_place "node$k" --mount --net --uts --ipc
      nsenter --target "$(pid_of controller)" --net sh -c "ip link add port$k type veth peer name eth0 netns $(pid_of "node$k") &&
        ip link set port$k master bridge up"
    done
  fi
  touch "$dir/ready"
  exec {turn}<> <(:)  # nothing is ever read from it: a sleep without a process
  while pid_of controller >/dev/null; do
    [[ -z ${TEST_CLUSTER_OWNER:-} ]] || kill -0 "$TEST_CLUSTER_OWNER" 2>/dev/null || break
    read -r -t 0.5 -u "$turn" || true
  done
}

# --- process 1 of the controller or of a node: `place DIR NAME`
place() {
  use_dir "$1"
  local name=$2 pid shared kept
  read -r pid _ </proc/self/stat  # the number by which the outside knows this process: /proc is still the outside's
  echo "$pid" >"$dir/$name.pid.new"
  mv "$dir/$name.pid.new" "$dir/$name.pid"
  if ((nodes > 1)); then
    mount --bind "$dir/hosts" /etc/hosts
    hostname "$name"
    ip link set lo up
  fi
  if [[ $name == node* ]]; then
    kept=$(mktemp -d "$dir/tmp.XXXXXX")
    mount -t tmpfs tmpfs "$kept"
    IFS=: read -ra shared <<<"$dir:${TEST_CLUSTER_SHARE:-}"
    for path in "${shared[@]}"; do
      [[ $path == /tmp/* ]] || continue
      mkdir -p "$kept/${path#/tmp/}"
      mount --rbind "$path" "$kept/${path#/tmp/}"
    done
    chmod 1777 "$kept"
    mount --rbind "$kept" /tmp
    mount -t tmpfs tmpfs /dev/shm
    mount -t proc proc /proc
    wait_for 60 ip link show eth0 >/dev/null 2>&1 || fail "no network after 60 s"
    ip addr add "$network.${name#node}/24" dev eth0
    ip link set eth0 up
    slurmd -D -f "$conf" &
  else
    # slurmd finds its tasks in /proc; mpirun's helpers on the controller find the nodes in that of the outside.
    if ((nodes == 1)); then
      mount -t proc proc /proc
      mount -t tmpfs tmpfs /dev/shm
    fi
    if ((nodes > 1)); then
      ip link add bridge type bridge forward_delay 0
      ip addr add "$network.254/24" dev bridge
      ip link set bridge up
    fi
    # --force: munged expects its own user and a directory that only root can write to.
    munged --foreground --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/munged.pid" \
      --log-file="$dir/munged.log" --seed-file="$dir/munged.seed" &
    wait_for 60 test -S "$dir/munge.socket" || fail "munged does not start: $(tail -n 3 "$dir/munged.log")"
    slurmctld -D -c -f "$conf" &
    if ((nodes == 1)); then slurmd -D -f "$conf" & fi
  fi
  # As process 1 this shell also collects processes whose parents have ended.
  wait -n
  fail "a daemon of $name has ended"
}

stop() {
  use_dir "${1:-$default_dir}"
  local name pid
  [[ -d $dir ]] || return 0
  if is_running; then
    controller scancel --user="$(id -un)" --quiet 2>/dev/null || true
    wait_for 5 no_jobs || true
  fi
  local pids=()
  for name in holder controller $(seq -f 'node%g' "$nodes"); do
    if pid=$(pid_of "$name"); then pids+=("$pid"); fi
  done
  if pid=$(pid_of holder); then kill -KILL "$pid" 2>/dev/null || true; fi
  for pid in "${pids[@]}"; do wait_for 10 is_gone "$pid" || fail "process $pid of $dir does not end"; done
}
no_jobs() { [[ -z $(controller squeue -h 2>/dev/null) ]]; }

use_dir "$default_dir"
case $command_name in
  start) start "$@" ;;
  stop) stop "$@" ;;
  hold) hold "$@" ;;
  place) place "$@" ;;
  exec) controller "$@" ;;
  node) on_node "$@" ;;
  rsh)  # HOST COMMAND… as ssh: for mpirun
    host=$1
    shift
    on_node "${host#node}" sh -c "$*"
    ;;
  link) nsenter --target "$(pid_of controller)" --net ip link set "port$1" "$2" ;;
  power-off)
    pid=$(pid_of "node$1") || fail "node$1 does not run"
    "$self" link "$1" down
    kill -KILL "$pid"
    wait_for 10 is_gone "$pid"
    ;;
  status)
    use_dir "${1:-$default_dir}"
    is_running || fail "no cluster runs in $dir"
    controller sinfo -N -o '%n %T %c CPUs %m MiB'
    ;;
  *) fail "usage: test_cluster.sh start [N] [DIR] | exec COMMAND… | node K COMMAND… | link K down|up | power-off K | stop [DIR] | status [DIR]" ;;
esac
