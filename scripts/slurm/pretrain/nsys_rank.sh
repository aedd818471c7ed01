#!/usr/bin/env bash
# One rank under Nsight Systems; 03.pretrain-nsys.sbatch and 04.pretrain-nsys-container.sbatch start it in place of
# train_llama, with the same arguments.
#
#   TRIREME_NSYS_RANKS    node (default): the first rank of every node; all: every rank; 0,9: these
#   TRIREME_NSYS_OUTPUT   folder of the reports (default: the folder that the job was submitted from)
#   TRIREME_NSYS_CAPTURE  time (default): TRIREME_NSYS_DURATION seconds (1200) from TRIREME_NSYS_DELAY (30) on;
#                         range: from cudaProfilerStart to cudaProfilerStop, which a run calls around the active steps of
#                         its profile section
#   TRIREME_NSYS_OPTIONS  more options of nsys profile, split at blanks
set -euo pipefail

program=${TRIREME_NSYS_PROGRAM:?the trainer that runs under nsys}
rank=${SLURM_PROCID:-}

# Outside of a step (the sbatch file asks for the configuration), and for the other ranks: no profiler.
traced=no
case ${TRIREME_NSYS_RANKS:=node} in
  all) traced=yes ;;
  node) if [[ ${SLURM_LOCALID:-} == 0 ]]; then traced=yes; fi ;;
  *) if [[ ,$TRIREME_NSYS_RANKS, == *,$rank,* ]]; then traced=yes; fi ;;
esac
if [[ -z ${SLURM_STEP_ID:-} || -z $rank || $traced == no || " $* " == *" --print-config "* ]]; then exec "$program" "$@"; fi

if ! command -v nsys >/dev/null 2>&1; then
  echo "nsys_rank.sh: nsys is not on PATH of $(hostname): load the module of Nsight Systems, or add its folder to PATH" >&2
  exit 2
fi

output=${TRIREME_NSYS_OUTPUT:-${SLURM_SUBMIT_DIR:-$PWD}}
mkdir -p "$output"
# No CPU sampling: it needs rights that clusters rarely give. The run goes on after the recording has ended.
options=("--trace=cuda,nvtx,cublas,cudnn" --sample=none --cpuctxsw=none --force-overwrite=true --kill=none
  --output="$output/report_llama2_job${SLURM_JOB_ID}_rank${rank}_on_$(hostname)")
case ${TRIREME_NSYS_CAPTURE:=time} in
  time) options+=(--delay="${TRIREME_NSYS_DELAY:-30}" --duration="${TRIREME_NSYS_DURATION:-1200}") ;;
  range) options+=(--capture-range=cudaProfilerApi --capture-range-end=stop) ;;
  *)
    echo "nsys_rank.sh: TRIREME_NSYS_CAPTURE is '$TRIREME_NSYS_CAPTURE': write time or range" >&2
    exit 2
    ;;
esac
read -ra more <<<"${TRIREME_NSYS_OPTIONS:-}"
exec nsys profile "${options[@]}" "${more[@]}" "$program" "$@"
