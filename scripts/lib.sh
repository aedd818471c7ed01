# Set-up and build, shared by setup.sh, test.sh, quickstart.sh and nightly.sh. Source it from the project's root; bash only.
#
#   setup_all       packages of the distribution, a Python with LibTorch, CMake and Ninja: installs only what is missing
#   build_release [target …]   configures build/release and builds the targets in it (none named: everything, tests included)
#   build_preset PRESET [target …]   the same in build/PRESET
#
# Environment:
#   TRIREME_PYTHON  Python with torch 2.11 to use as it is (else the active virtual environment, .venv, python3 on PATH)
#   Torch_DIR       another LibTorch: the folder with TorchConfig.cmake
#   CUDA_HOME       CUDA toolkit (else nvcc on PATH or /usr/local/cuda)
#   TRIREME_CUDA    AUTO (default), ON or OFF
# shellcheck shell=bash

lib_started=$SECONDS
trireme_python=""
trireme_cmake=""
trireme_ninja=""

progress() { printf '[%4d s] %s\n' "$((SECONDS - lib_started))" "$*"; }

fail() {
  printf '%s: %s\n' "$(basename -- "$0" .sh)" "$*" >&2
  exit 1
}

# --- packages of the distribution ----------------------------------------------------------------------------------------------

# name or name|name: alternatives (Ubuntu 24.04 renamed libraries with 64-bit time_t).
apt_packages=(
  build-essential ccache git python3 python3-venv
  libyaml-cpp-dev libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev libtomlplusplus-dev libxxhash-dev
  libhdf5-dev zlib1g-dev libsentencepiece-dev libpcre2-dev libgtest-dev
)
mpi_packages=(libopenmpi-dev openmpi-bin)
# The tests start a real one-node cluster; its srun --mpi=pmix needs libpmix2, which is only recommended.
slurm_packages=(slurm-wlm munge 'libpmix2|libpmix2t64')

package_installed() {
  local status
  status=$(dpkg-query -W -f='${db:Status-Status}\n' "$1" 2>/dev/null) || true
  case $'\n'"$status"$'\n' in *$'\ninstalled\n'*) return 0 ;; esac
  return 1
}

# Fills the array `missing`. If the site has its own Slurm or MPI, not from a package, no second one is installed.
find_missing_packages() {
  local wanted=("${apt_packages[@]}") package name
  if package_installed openmpi-bin || ! { command -v mpicc && command -v mpirun; } >/dev/null 2>&1; then
    wanted+=("${mpi_packages[@]}")
  fi
  if package_installed slurm-wlm || ! command -v srun >/dev/null 2>&1; then wanted+=("${slurm_packages[@]}"); fi
  missing=()
  local installed
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' 2>/dev/null | sed -n 's/^installed //p')
  for package in "${wanted[@]}"; do
    local found=no
    for name in ${package//|/ }; do
      if grep -qxF -- "$name" <<<"$installed"; then found=yes; fi
    done
    if [ "$found" = no ]; then missing+=("$package"); fi
  done
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    env DEBIAN_FRONTEND=noninteractive "$@"
  elif [ -t 0 ]; then
    sudo env DEBIAN_FRONTEND=noninteractive "$@"
  else
    sudo -n env DEBIAN_FRONTEND=noninteractive "$@"
  fi
}

apt_log=.cache/apt.log

# Its output (hundreds of lines) goes to a file and is shown only on failure.
apt_get() {
  mkdir -p .cache
  as_root apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 "$@" >>"$apt_log" 2>&1
}

# The first of name|name that the package lists know, else the first.
known_name() {
  local name
  for name in ${1//|/ }; do
    if apt-cache policy "$name" 2>/dev/null | grep -q 'Candidate: [0-9]'; then
      echo "$name"
      return
    fi
  done
  echo "${1%%|*}"
}

apt_install() {
  local names=() package
  for package in "${missing[@]}"; do names+=("$(known_name "$package")"); done
  apt_get -y --no-install-recommends install "${names[@]}"
}

setup_packages() {
  local missing
  if ! command -v dpkg-query >/dev/null 2>&1; then
    progress "not Debian or Ubuntu: expecting g++ 12 or later, MPI and the libraries of README.md to be there"
    return
  fi
  find_missing_packages
  if [ ${#missing[@]} -eq 0 ]; then
    progress "packages: all there"
    return
  fi
  if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null 2>&1; then
    fail "missing packages, and neither root nor sudo to install them: apt-get install ${missing[*]%%|*}"
  fi
  progress "packages: installing ${missing[*]%%|*}"
  local package complete=yes
  for package in "${missing[@]}"; do
    if ! apt-cache policy "$(known_name "$package")" 2>/dev/null | grep -q 'Candidate: [0-9]'; then complete=no; fi
  done
  # Outdated package lists name versions that the mirrors no longer have: after a failure, update the lists and try
  # again.
  if [ "$complete" = no ] || ! apt_install; then
    progress "packages: updating the lists"
    apt_get update || fail "apt-get update failed: is the network there? (see $apt_log)"
    apt_install || { tail -n 20 "$apt_log" >&2; fail "apt-get could not install: ${missing[*]%%|*}"; }
  fi
  find_missing_packages
  if [ ${#missing[@]} -ne 0 ]; then fail "still missing after apt-get install: ${missing[*]%%|*}"; fi
  progress "packages: installed"
}

# --- Python: LibTorch, CMake, Ninja ----------------------------------------------------------------------------------------------

# Prints the requirements that PYTHON lacks, one a line; only metadata is read, nothing is imported.
missing_requirements() {
  "$1" - scripts/requirements.txt <<'PY'
import importlib.metadata
import importlib.util
import os
import sys

modules = {"protobuf": "google.protobuf", "clang-format": "clang_format"}  # imported under another name
for line in open(sys.argv[1]):
    line = line.split("#")[0].strip()
    if not line:
        continue
    name, _, wanted = line.partition("==")
    if name == "torch" and os.environ.get("Torch_DIR"):
        continue
    try:
        version = importlib.metadata.version(name)
        there = importlib.util.find_spec(modules.get(name, name)) is not None
    except (importlib.metadata.PackageNotFoundError, ModuleNotFoundError):
        there = False
    # LibTorch's C++ interface changes between minor versions; the others may have any version.
    if there and name == "torch":
        there = version.split(".")[:2] == wanted.split(".")[:2]
    if not there:
        print(line)
PY
}

# With Torch_DIR, LibTorch comes from there and any Python is sufficient.
has_torch() {
  local lacking
  [ -n "$1" ] && command -v "$1" >/dev/null 2>&1 || return 1
  lacking=$(missing_requirements "$1" 2>/dev/null) || return 1
  ! grep -q '^torch==' <<<"$lacking"
}

create_venv() {
  local base
  base=$(command -v python3) || fail "python3 is missing"
  if ! "$base" -c 'import ensurepip, venv' 2>/dev/null; then
    # python3 on PATH is not the distribution's and lacks these modules; the distribution's has python3-venv.
    base=/usr/bin/python3
    "$base" -c 'import ensurepip, venv' || fail "python3 cannot make virtual environments: install python3-venv"
  fi
  "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$base is older than Python 3.11"
  progress "python: creating .venv with $("$base" --version)"
  "$base" -m venv --clear .venv || fail "could not create .venv"
}

# Only a .venv whose Python does not run is made anew; one without pip (`uv venv`) keeps its packages.
working_venv() {
  if .venv/bin/python -m pip --version >/dev/null 2>&1; then return; fi
  if ! .venv/bin/python -c '' 2>/dev/null; then
    create_venv
  elif ! .venv/bin/python -m ensurepip >/dev/null 2>&1 || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    fail "$PWD/.venv has no pip that works, and ensurepip could not install it: remove this folder"
  fi
}

pip_install() {
  working_venv
  # Overrides pip settings that install to another place; the sources of packages (index, mirrors, wheel folders) stay
  # as the user set them. --no-compile: byte code of thousands of modules takes longer than the rest; Python makes that of
  # what it imports.
  env -u PIP_TARGET -u PIP_PREFIX -u PIP_ROOT PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 \
    .venv/bin/python -m pip install --quiet --no-compile --progress-bar off --retries 5 "$@" ||
    fail "pip could not install $*: check the network, or name a folder with the wheels in PIP_FIND_LINKS"
}

setup_python() {
  local lacking candidate
  if [ -n "${TRIREME_PYTHON:-}" ] && ! has_torch "$TRIREME_PYTHON"; then
    fail "TRIREME_PYTHON=$TRIREME_PYTHON has no torch 2.11"
  fi
  if [ -n "${Torch_DIR:-}" ] && [ ! -f "$Torch_DIR/TorchConfig.cmake" ]; then
    fail "Torch_DIR=$Torch_DIR has no TorchConfig.cmake: it must name LibTorch's share/cmake/Torch"
  fi
  for candidate in "${TRIREME_PYTHON:-}" "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}" .venv/bin/python python3; do
    if has_torch "$candidate"; then
      trireme_python=$("$candidate" -c 'import sys; print(sys.executable)')
      break
    fi
  done
  local own=$PWD/.venv/bin/python
  if [ -z "$trireme_python" ]; then
    working_venv
    trireme_python=$own
  fi
  lacking=$(missing_requirements "$trireme_python") || fail "$trireme_python does not run"
  if [ -z "$lacking" ]; then
    progress "python: $trireme_python has all that is needed"
  elif [ "$trireme_python" = "$own" ]; then
    progress "python: installing ${lacking//$'\n'/ } (torch is large: some minutes)"
    local requirements=()
    mapfile -t requirements <<<"$lacking"
    pip_install "${requirements[@]}"
    lacking=$(missing_requirements "$trireme_python")
    if [ -n "$lacking" ]; then fail "still missing after pip install: ${lacking//$'\n'/ }"; fi
    progress "python: installed"
  else
    progress "python: using $trireme_python; without these packages, and without the tests that need them: ${lacking//$'\n'/ }"
  fi
}

# The first NAME that ACCEPTS accepts: of the chosen Python, PATH, .venv.
find_tool() {
  local name=$1 accepts=$2 scripts candidate
  scripts=$("$trireme_python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')
  for candidate in "$scripts/$name" "$(command -v "$name" || true)" "$PWD/.venv/bin/$name"; do
    if [ -n "$candidate" ] && [ -x "$candidate" ] && "$accepts" "$candidate"; then
      echo "$candidate"
      return
    fi
  done
}

recent_cmake() {
  local version
  version=$("$1" --version 2>/dev/null | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p') || return 1
  [ "$(printf '%s\n3.28\n' "$version" | sort -V | head -n 1)" = 3.28 ]
}

working_ninja() { "$1" --version >/dev/null 2>&1; }

setup_tools() {
  trireme_cmake=$(find_tool cmake recent_cmake)
  trireme_ninja=$(find_tool ninja working_ninja)
  if [ -z "$trireme_cmake" ] || [ -z "$trireme_ninja" ]; then
    progress "tools: installing CMake and Ninja into .venv"
    local pins=()
    mapfile -t pins < <(grep -E '^(cmake|ninja)==' scripts/requirements.txt)
    pip_install "${pins[@]}"
    trireme_cmake=$(find_tool cmake recent_cmake)
    trireme_ninja=$(find_tool ninja working_ninja)
  fi
  if [ -z "$trireme_cmake" ]; then fail "no CMake of 3.28 or later after installing it"; fi
  if [ -z "$trireme_ninja" ]; then fail "no Ninja after installing it"; fi
  progress "tools: $("$trireme_cmake" --version | head -n 1), ninja $("$trireme_ninja" --version)"
}

setup_all() {
  setup_packages
  setup_python
  setup_tools
}

# --- build -----------------------------------------------------------------------------------------------------------------------

# One compile job per core, but at most one per 2 GB of memory: files with LibTorch's headers need that much.
build_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable:/ { print int($2 / 2000000) }' /proc/meminfo)
  if [ "$memory" -lt 1 ]; then memory=1; fi
  echo $((cores < memory ? cores : memory))
}

build_release() { build_preset release "$@"; }

# build_preset PRESET [target …]
build_preset() {
  local preset=$1 folder=build/$1 cached log options
  shift
  log=$folder/configure.log
  if [ -z "$trireme_cmake" ]; then fail "setup_all comes before build_preset"; fi
  # The CMake cache of a copied or moved tree refers to the old path.
  if [ -f "$folder/CMakeCache.txt" ]; then
    cached=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$folder/CMakeCache.txt")
    if [ "$cached" != "$PWD" ]; then
      progress "build: $folder belongs to $cached, starting anew"
      rm -rf "$folder"
    fi
  fi
  mkdir -p "$folder"
  options=(-DCMAKE_MAKE_PROGRAM="$trireme_ninja" -DTRIREME_PYTHON="$trireme_python")
  if [ -n "${TRIREME_CUDA:-}" ]; then options+=(-DTRIREME_CUDA="$TRIREME_CUDA"); fi
  if ! "$trireme_cmake" --preset "$preset" "${options[@]}" >"$log" 2>&1; then
    cat "$log" >&2
    fail "CMake could not configure the build: the reason is above"
  fi
  progress "build: configured ($(sed -n 's/^-- Kernels: //p' "$log"))"
  NINJA_STATUS='[build %f/%t, %e s] ' "$trireme_cmake" --build "$folder" -j "$(build_jobs)" ${1:+--target "$@"} || fail "the build failed: see above"
  progress "build: done"
}
