# What the benchmark scripts beside this one share. Source it after MODEL, MODEL_SIZE, NUM_NODES and MAX_STEPS.
# shellcheck shell=bash
#
#   TARGET_PATH        data and results lie below it (default: the folder that the script is called from)
#   NUM_NODES          nodes of eight GPUs, one rank each
#   MAX_STEPS          steps of the run; there is no validation, no checkpoint, and the data is mock
#   UNIQUE_OUTPUT_DIR  1: results go to results-<UTC stamp>-<random>, so that runs do not overwrite each other
#   TRIREME_BUILD      the build or installation (default: the one that this file belongs to)
#   TRIREME_CONF       config.yaml to take (default: launch/conf/config.yaml beside the slurm folder)
#
# Further arguments are overrides, appended as they are.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tree=$(cd "$here/../../.." && pwd)
: "${TARGET_PATH:=$PWD}"
if [[ $here == */share/trireme/slurm/gpt3 ]]; then : "${TRIREME_BUILD:=$(cd "$tree/.." && pwd)}"; fi
: "${TRIREME_BUILD:=$tree/build/release}"
: "${TRIREME_CONF:=$(cd "$here/../../launch" && pwd)/conf/config.yaml}"
trireme=$TRIREME_BUILD/bin/trireme
if [[ ! -x $trireme ]]; then trireme=$(command -v trireme) || trireme=; fi
if [[ -z $trireme ]]; then
  echo "$(basename "$0"): $TRIREME_BUILD/bin/trireme is missing: build it, or set TRIREME_BUILD" >&2
  exit 2
fi

results=results
if [[ ${UNIQUE_OUTPUT_DIR:-0} == 1 ]]; then results+=-$(date -u +%Y%m%d-%H%M%S)-$RANDOM; fi

launch_benchmark() {  # OVERRIDES…
  "$trireme" launch "$TRIREME_CONF" \
    "stages=[training]" \
    "launcher_scripts_path=$TARGET_PATH" \
    "base_results_dir=$TARGET_PATH/$results" \
    "training=$MODEL/$MODEL_SIZE" \
    "training.trainer.num_nodes=$NUM_NODES" \
    "training.trainer.max_steps=$MAX_STEPS" \
    "training.trainer.val_check_interval=$MAX_STEPS" \
    "training.trainer.limit_val_batches=0.0" \
    "training.exp_manager.create_checkpoint_callback=False" \
    "training.exp_manager.resume_if_exists=False" \
    "training.model.data.data_impl=mock" \
    "training.model.data.data_prefix=[]" \
    "$@"
}
