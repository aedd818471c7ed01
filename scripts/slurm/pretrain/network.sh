# Environment of NCCL for the sbatch files beside this one. Source it.
# shellcheck shell=bash

# On AWS instances with EFA (p4d, p5) NCCL reaches the other nodes through libfabric: TRIREME_EFA=1. Needs the
# aws-ofi-nccl plugin on the library path.
if [[ ${TRIREME_EFA:-0} == 1 ]]; then
  export FI_PROVIDER=${FI_PROVIDER:-efa} FI_EFA_USE_DEVICE_RDMA=${FI_EFA_USE_DEVICE_RDMA:-1}
fi
# INFO also lists the rings and the network that NCCL takes; WARN only what fails.
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
