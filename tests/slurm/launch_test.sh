#!/usr/bin/env bash
# `trireme launch` under a real Slurm of one node: launch_test.sh BIN. Exit code 77: skipped.
set -uo pipefail

bin=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
source "$root/tests/slurm/site.sh"
export TRIREME_DEVICE=cpu OMP_NUM_THREADS=1
unset TRIREME_PROGRAM NEMO_LAUNCHER_DEBUG NEMO_LAUNCHER_CI NEMO_LAUNCHER_MEMORY_MEASURE

site=$work/site
mkdir -p "$site"
cd "$site" || exit 1
no_jobs() { local left; left=$(control squeue -h 2>/dev/null) && [[ -z $left ]]; }
wait_for_jobs() { wait_until 180 no_jobs; }  # all jobs of the queue
has_files() {  # FOLDER NAMES…
  local folder=$1 name
  shift
  for name in "$@"; do compgen -G "$folder/$name" >/dev/null || { echo "no $folder/$name" >>"$out"; return 1; }; done
}

# A 126M-shaped run made small: 2 blocks of width 32, two CPU ranks.
size=(training=gpt3/126m training.trainer.num_nodes=1 training.trainer.devices=2 training.trainer.precision=32
  training.trainer.max_steps=4 training.trainer.val_check_interval=4 training.trainer.limit_val_batches=0.0
  training.trainer.log_every_n_steps=1 training.model.num_layers=2 training.model.hidden_size=32
  training.model.num_attention_heads=4 training.model.encoder_seq_length=32 training.model.micro_batch_size=1
  training.model.global_batch_size=4 training.model.optim.sched.warmup_steps=1 training.exp_manager.create_checkpoint_callback=False)
cluster=(cluster.exclusive=False cluster.gpus_per_node=null 'cluster.srun_args=[--mpi=pmix,--kill-on-bad-exit=1]'
  +env_vars.TRIREME_DEVICE=cpu)
if [[ -x $bin/train_gpt ]]; then
  data=(training.model.data.data_impl=mock 'training.model.data.data_prefix=[]')
else
  # A build without train_gpt: train_llama takes gpt2 models, and rows of a npy file.
  export TRIREME_PROGRAM=$bin/train_llama
  "${TRIREME_TEST_PYTHON:-python3}" - <<'PYTHON' || skip "no NumPy for the rows"
import numpy
numpy.save("rows.npy", numpy.random.default_rng(1).integers(0, 50257, (16, 32)).astype("int32"))
PYTHON
  data=("training.model.data.data_prefix=[$site/rows.npy]")
fi
launch() {  # OVERRIDES…
  run "$bin/trireme" launch "$root/scripts/launch/conf/config.yaml" "stages=[training]" "${size[@]}" "${cluster[@]}" "${data[@]}" "$@"
}
foreground() {  # OVERRIDES…
  run "$bin/trireme" launch "$root/scripts/launch/conf/config.yaml" cluster=interactive cluster_type=interactive "${size[@]}" "${data[@]}" \
    training.run.name=here training.trainer.devices=1 "$@"
}
results=$site/results/gpt3_126m
log() { cat "$results"/log-nemo-megatron-gpt3_126m_"$1".out "$results"/log-nemo-megatron-gpt3_126m_"$1".err >"$out" 2>/dev/null; }

# --- a dry run submits nothing
run env NEMO_LAUNCHER_DEBUG=True "$bin/trireme" launch "$root/scripts/launch/conf/config.yaml" "${size[@]}" "${cluster[@]}" "${data[@]}"
check "debug: ends well" ends_with 0
check "debug: a fake number" says 'FAKE Job ID [0-9]{5}$'
check "debug: the script is there" test -s "$results/nemo-megatron-gpt3_126m_submission.sh"
check "debug: nothing was submitted" test ! -e "$results/launcher.log"
printf '#!/bin/sh\necho "your job is in account x"\necho "Submitted batch job 123"\n' >sbatch
chmod +x sbatch
PATH=$site:$PATH launch training.run.name=said
check "sbatch: the job's number, whatever a site has it say before" says 'submitted with Job ID 123$'
rm sbatch

# --- a run
launch training.exp_manager.resume_if_exists=False
check "launch: ends well" ends_with 0
check "launch: the job's number" says 'submitted with Job ID [0-9]+'
first=$(sed -n 's/^Submitted batch job //p' "$results/launcher.log")
wait_for_jobs
log "$first"
check "run: the job ended well" grep -q 'ExitCode=0:0' <(scontrol show job "$first")
check "run: files of the launcher" has_files "$results" gpt3_126m_hydra.yaml gpt3_126m.yaml model/config.json nemo-megatron-gpt3_126m_submission.sh \
  launcher.log launcher_cmd.log "log-nemo-megatron-gpt3_126m_$first.out" "log-nemo-megatron-gpt3_126m_$first.err"
check "run: files of the trainer" has_files "$results/results" metrics.jsonl config.yaml model/config.json
if [[ -x $bin/train_gpt ]] && grep -q '^  style: nemo' "$results/gpt3_126m.yaml"; then
  check "run: files of NeMo's experiment manager" has_files "$results/results" cmd-args.log git-info.log hparams.yaml 'events.out.tfevents.*' \
    'nemo_log_globalrank-0_localrank-0.txt' nemo_error_log.txt
fi
check "run: both ranks" grep -q '"world_size": *2' "$results/results/metrics.jsonl"
check "run: four steps" test "$(grep -c '"event": *"train"' "$results/results/metrics.jsonl")" = 4
check "run: CPUs as numa_mapping says" says 'TRIREME_NUMA_MAPPING=mode=unique_contiguous'
check "launcher_cmd.log: the command, a word a line" grep -q '^  training=gpt3/126m \\$' "$results/launcher_cmd.log"
check "hydra file: resolved" test -z "$(grep -F '${' "$results/gpt3_126m_hydra.yaml")"

# --- a second launch overwrites all but the logs of the jobs; the first run's results move
launch training.exp_manager.resume_if_exists=False training.trainer.max_steps=3
second=$(sed -n 's/^Submitted batch job //p' "$results/launcher.log")
wait_for_jobs
log "$second"
check "again: another job" test "$second" != "$first"
check "again: it ended well" grep -q 'ExitCode=0:0' <(scontrol show job "$second")
check "again: both logs" has_files "$results" "log-nemo-megatron-gpt3_126m_$first.out" "log-nemo-megatron-gpt3_126m_$second.out"
check "again: its own steps" test "$(grep -c '"event": *"train"' "$results/results/metrics.jsonl")" = 3
check "again: the first run's files are in run_0" test "$(grep -c '"event": *"train"' "$results/run_0/metrics.jsonl")" = 4
check "again: the hydra file is the new one" grep -q 'max_steps: 3' "$results/gpt3_126m_hydra.yaml"

# --- Slurm's patterns
launch training.run.name=5%j
third=$(sed -n 's/^Submitted batch job //p' "$site/results/5%j/launcher.log")
wait_for_jobs
check "%: the logs are in the folder" has_files "$site/results/5%j" "log-nemo-megatron-5%j_$third.out" "log-nemo-megatron-5%j_$third.err" results/metrics.jsonl

# --- stages depend on each other, jobs of one name wait for each other. The first must not have ended when the second is looked at.
control scontrol update PartitionName=main State=DOWN
run "$bin/trireme" launch "$root/scripts/launch/conf/config.yaml" "stages=[training,training]" "${size[@]}" "${cluster[@]}" "${data[@]}" \
  training.run.name=chain training.exp_manager.resume_if_exists=False
check "stages: two jobs" lines 2 'submitted with Job ID'
before=$(sed -n 's/.*submitted with Job ID //p' "$out" | head -n 1)
last=$(sed -n 's/.*submitted with Job ID //p' "$out" | tail -n 1)
check "stages: the second waits for the first" grep -q "Dependency=afterany:$before" <(scontrol show job "$last")
control scontrol update PartitionName=main State=UP
wait_for_jobs
check "stages: the second ran" grep -q 'ExitCode=0:0' <(scontrol show job "$last")
check "stages: it made room" test -e "$site/results/chain/run_0/metrics.jsonl"

# --- the benchmark scripts
bench() {  # VARIABLE=VALUE… -- ARGUMENTS…
  local variables=()
  while [[ $1 != -- ]]; do variables+=("$1"); shift; done
  shift
  run env TRIREME_BUILD="$(dirname "$bin")" TARGET_PATH="$site/bench" NEMO_LAUNCHER_DEBUG=1 "${variables[@]}" "$@"
}
bench -- bash "$root/scripts/slurm/gpt3/1.bmk-pretrain-gpt3-126m.sh" cluster.partition=main
check "126m: ends well" ends_with 0
check "126m: one folder" has_files "$site/bench/results/gpt3_126m" gpt3_126m_hydra.yaml
check "126m: its steps" grep -q 'max_steps: 100$' "$site/bench/results/gpt3_126m/gpt3_126m_hydra.yaml"
check "126m: arguments are appended" grep -q '^#SBATCH --partition=main' "$site/bench/results/gpt3_126m/nemo-megatron-gpt3_126m_submission.sh"
bench UNIQUE_OUTPUT_DIR=1 -- bash "$root/scripts/slurm/gpt3/1.bmk-pretrain-gpt3-126m2.sh"
bench UNIQUE_OUTPUT_DIR=1 -- bash "$root/scripts/slurm/gpt3/1.bmk-pretrain-gpt3-126m2.sh"
check "UNIQUE_OUTPUT_DIR: two folders" test "$(compgen -G "$site/bench/results-*/gpt3_126m/gpt3_126m_hydra.yaml" | wc -l)" = 2
bench MICRO_BATCH_SIZE=1 -- bash "$root/scripts/slurm/gpt3/2.bmk-pretrain-gpt3-5b.sh"
check "5b: ends well" ends_with 0
check "5b: micro-batches" grep -q 'micro_batch_size: 1$' "$site/bench/results/gpt3_5b/gpt3_5b_hydra.yaml"
check "5b: one block in 24" grep -q 'recompute: 1/24' "$site/bench/results/gpt3_5b/gpt3_5b.yaml"

# --- what is wrong
launch training.trainer.max_stepz=3 training.model.tensor_model_parallel_size=2
check "errors: exit code 2" ends_with 2
check "errors: did you mean" says "there is no 'training.trainer.max_stepz'. Did you mean 'max_steps'\?"
launch cluster.partition=nowhere
check "sbatch refuses: exit code 73" ends_with 73
check "sbatch refuses: its words" says 'invalid partition'

# --- in the foreground
foreground training.exp_manager.resume_if_exists=False
check "interactive: ends well" ends_with 0
check "interactive: the log" has_files "$site/results/here" 'log-here_*.out' here_submission.sh results/metrics.jsonl
foreground training.exp_manager.resume_if_exists=True training.model.optim.lr=1.0
check "interactive: the run's exit code is the launcher's" ends_with 73

# A signal to `trireme launch` alone: the ranks save, and it ends after them.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
stopped() {  # SIGNAL RANKS LAUNCHER…
  local name=$1-$2-${3:-} signal=$1 ranks=$2
  shift 2
  out=$work/out
  TRIREME_FAULT=sleep@step:rank0:0.3s "$@" bash -c 'echo $$ >pid; exec "$@"' - "$bin/trireme" launch "$root/scripts/launch/conf/config.yaml" \
    cluster=interactive cluster_type=interactive 'cluster.srun_args=[--mpi=pmix]' "${size[@]}" "${data[@]}" training.run.name="$name" training.trainer.devices="$ranks" \
    training.trainer.max_steps=10000 training.trainer.val_check_interval=10000 training.exp_manager.create_checkpoint_callback=True >"$out" 2>&1 &
  check "$name: it trains" wait_until 60 grep -qs '"event": *"train"' "$site/results/$name/results/metrics.jsonl"
  kill -"$signal" "$(cat pid)"
  check "$name: it ends" wait_until 60 gone $!
  wait $!
  code=$?
  check "$name: with the ranks' exit code" ends_with 75
  pgrep -af "$site/results/$name/" >"$out"
  check "$name: no process is left" test ! -s "$out"
  pkill -KILL -f "$site/results/$name/"
  cat "$site/results/$name"/log-*.out >"$out"
  check "$name: the log is whole" says 'state saved'
}
gone() { ! kill -0 "$1" 2>/dev/null; }
stopped TERM 1
stopped TERM 2
stopped HUP 2 salloc -n 2

exit $((failures > 0))
