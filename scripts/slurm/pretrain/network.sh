# Environment of NCCL and libfabric for the sbatch files: source it. What is set already keeps its value.
# shellcheck shell=bash
#
#   TRIREME_FABRIC   efa: AWS's Elastic Fabric Adapter; infiniband: InfiniBand or RoCE; empty: what NCCL finds by itself
#   TRIREME_EFA=1    the same as TRIREME_FABRIC=efa

if [[ ${TRIREME_EFA:-0} == 1 ]]; then : "${TRIREME_FABRIC:=efa}"; fi
case ${TRIREME_FABRIC:=} in
  efa)
    # NCCL reaches the other nodes through libfabric: the aws-ofi-nccl plugin (libnccl-net.so) must be on the library path.
    # The provider of libfabric that drives EFA; without it libfabric may take TCP.
    export FI_PROVIDER=${FI_PROVIDER:-efa}
    # The NIC reads and writes GPU memory itself (p4d, p5 and later).
    export FI_EFA_USE_DEVICE_RDMA=${FI_EFA_USE_DEVICE_RDMA:-1}
    # A fork of a process with registered memory does not corrupt it (needed before Linux 5.13).
    export FI_EFA_FORK_SAFE=${FI_EFA_FORK_SAFE:-1}
    # Ranks of one node that use libfabric reach each other through shared memory.
    export FI_EFA_ENABLE_SHM_TRANSFER=${FI_EFA_ENABLE_SHM_TRANSFER:-1}
    # NCCL's LL and LL128 protocols rely on the order of bytes within a write, which EFA does not promise.
    export NCCL_PROTO=${NCCL_PROTO:-simple}
    ;;
  infiniband)
    # NCCL takes every adapter that is up. Where one belongs to storage: NCCL_IB_HCA=mlx5_0,mlx5_1,… (names of `ibstat`).
    # GPU memory goes through the adapter where GPU and adapter share a PCIe host bridge (needs nvidia-peermem or dma-buf).
    export NCCL_NET_GDR_LEVEL=${NCCL_NET_GDR_LEVEL:-PHB}
    # An adapter waits 4.096 µs · 2^22 = 17 s for an answer before it sends again: long enough for a switch that reroutes.
    export NCCL_IB_TIMEOUT=${NCCL_IB_TIMEOUT:-22}
    ;;
  "") ;;
  *)
    echo "network.sh: TRIREME_FABRIC is '$TRIREME_FABRIC': write efa or infiniband, or leave it empty" >&2
    exit 2
    ;;
esac
# NCCL_SOCKET_IFNAME=eth0 names the interface of NCCL's bootstrap where a node has several.
# INFO also lists the rings and the network that NCCL takes; WARN only what fails.
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
