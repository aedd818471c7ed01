# Paths on this cluster: copy, edit, source before a config_*.sh.
# shellcheck shell=bash
export DATADIR=${DATADIR:-$PWD/data}     # holds train.npy and validation.npy
export MODEL=${MODEL:-$PWD/model}        # a Hugging Face directory, or NeMo's with context/ and weights/
export LOGDIR=${LOGDIR:-$PWD/results}    # logs and run directories
export TRIREME_BUILD=${TRIREME_BUILD:-$PWD/build/release}
export SLURM_MPI_TYPE=${SLURM_MPI_TYPE:-pmix} # pmix | none (GPU ranks only)
# A container image (enroot/pyxis); leave empty to run on the host.
export CONT_FILE=${CONT_FILE:-}
