# Trireme in an image: `build` compiles it, `runtime` has the unpacked archive and nothing to compile with.
#
#   docker build -t trireme:cpu .                 # or: buildah bud -t trireme:cpu .
#   docker build --build-arg BUILDER=nvidia/cuda:13.0.1-devel-ubuntu24.04 --build-arg DEBIAN=ubuntu:24.04 -t trireme .
#   enroot import -o trireme.sqsh dockerd://trireme
#
# The build context is the project's tree with its .git, which names the commit; .dockerignore leaves build results out.
ARG DEBIAN=debian:12
# The image of the build stage, of the same distribution. For GPUs one with CUDA's compiler 13.0: debian:12 has none, and
# CUDA=AUTO then builds for CPUs alone.
ARG BUILDER=${DEBIAN}

FROM ${BUILDER} AS build
ARG CUDA=AUTO
ENV DEBIAN_FRONTEND=noninteractive TRIREME_CUDA=${CUDA}
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates git python3 python3-venv zstd && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN scripts/setup.sh
RUN bash -c 'source scripts/lib.sh && setup_all && build_release trireme_tool interface && \
    TRIREME_BUNDLE=ON "$trireme_cmake" --install build/release --prefix /opt/trireme'

FROM ${DEBIAN} AS runtime
# mpirun and its plugins for several CPU ranks; GPU ranks need neither.
RUN apt-get update && apt-get install -y --no-install-recommends openmpi-bin && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/trireme /opt/trireme
ENV PATH=/opt/trireme/bin:${PATH}
# A container's only user is root, whom mpirun refuses without these.
ENV OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# What the container runtime of NVIDIA mounts: the driver's compute and management libraries.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN trireme --version && ldd /opt/trireme/bin/* >/tmp/ldd && ! grep 'not found' /tmp/ldd && rm /tmp/ldd
CMD ["trireme", "--help"]
