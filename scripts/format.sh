#!/usr/bin/env bash
# Formats all C++ and CUDA sources with the pinned clang-format (scripts/requirements.txt); --check only reports.
#
#   scripts/format.sh [--check] [file…]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Another version formats differently, so only the pinned one is used.
version=$(sed -n 's/^clang-format==//p' scripts/requirements.txt)
formatter=""
for candidate in "${TRIREME_PYTHON:+$(dirname "$TRIREME_PYTHON")/clang-format}" .venv/bin/clang-format clang-format; do
  if [ -n "$candidate" ] && "$candidate" --version 2>/dev/null | grep -qF " $version"; then
    formatter=$candidate
    break
  fi
done

mode=(-i)
if [ "${1:-}" = --check ]; then
  mode=(--dry-run --Werror)
  shift
  if [ -z "$formatter" ]; then
    echo "format: not checked, clang-format $version is missing: scripts/setup.sh installs it into .venv"
    exit 0
  fi
elif [ -z "$formatter" ]; then
  echo "format: clang-format $version is missing: scripts/setup.sh installs it into .venv" >&2
  exit 1
fi
files=("$@")
if [ ${#files[@]} -eq 0 ]; then
  mapfile -t files < <(find include src models data kernels tests -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) | sort)
fi
# clang-format would take any other text for C++ and destroy it.
for file in "${files[@]}"; do
  case $file in
    *.h | *.cpp | *.cu | *.cuh) ;;
    *) echo "format: $file is no C++ or CUDA file; nothing was changed" >&2; exit 2 ;;
  esac
done
printf '%s\0' "${files[@]}" | xargs -0 -n 64 -P 2 "$formatter" --style=file "${mode[@]}"
