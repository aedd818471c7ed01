# Options of srun for a run in a container (enroot and pyxis): train_llama.sbatch sources it and takes container_options.
# shellcheck shell=bash
#
#   CONT_FILE          the image: a .sqsh file or a registry's name (required)
#   TRIREME_BUILD      the build; it is mounted at its own path and must have been made for the image's distribution
#   TRIREME_IN_IMAGE   1: the program is the image's own (the project's Dockerfile: on PATH, in /opt/trireme/bin), no build is mounted; not for 04.pretrain-nsys-container.sbatch
#   TRIREME_MOUNTS     more folders, comma-separated: data, model and output directories. The folder that the job was
#                      submitted from is mounted always.

submit_dir=${SLURM_SUBMIT_DIR:-$PWD}
mounts=$submit_dir:$submit_dir
if [[ ${TRIREME_IN_IMAGE:-0} == 1 ]]; then
  # The name of the program that the host was asked for: train_llama, train_bert, …
  program=${TRIREME_PROGRAM:-train_llama}
  export TRIREME_PROGRAM=${program##*/}
else
  # An installation is whole. Of a build LibTorch lies in .venv beside it; both are in the tree of the project.
  : "${TRIREME_BUILD:=$submit_dir/build/release}"
  tree=$TRIREME_BUILD
  if [[ ! -d $tree/share/trireme ]]; then tree=$(cd "$TRIREME_BUILD/../.." && pwd) || return; fi
  if [[ $tree != "$submit_dir" ]]; then mounts=$tree:$tree:ro,$mounts; fi  # in front of folders below it
fi
IFS=, read -ra folders <<<"${TRIREME_MOUNTS:-}"
for folder in "${folders[@]}"; do
  if [[ ! -d $folder ]]; then
    echo "container.sh: TRIREME_MOUNTS names $folder, which is no folder" >&2
    return 2
  fi
  mounts+=,$folder:$folder
done

# The container stays on its node for all attempts of the job.
# shellcheck disable=SC2034  # for the file that sources this one
container_options=("--container-image=$CONT_FILE" "--container-name=pretrain_$SLURM_JOB_ID" "--container-mounts=$mounts"
  "--container-workdir=$submit_dir" --no-container-mount-home)
# Ranks find each other through the first node.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
: "${MASTER_PORT:=29500}"
export MASTER_ADDR MASTER_PORT
