#!/usr/bin/env bash
# Formats all C++ and CUDA sources with clang-format 14 (the version whose output is kept); --check only reports.
#
#   scripts/format.sh [--check] [file…]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

formatter=$(command -v clang-format-14 || command -v clang-format || true)
if [ -z "$formatter" ] || ! "$formatter" --version | grep -q 'version 14\.'; then
  echo "format: clang-format 14 is missing: apt-get install clang-format-14" >&2
  exit 1
fi

mode=(-i)
if [ "${1:-}" = --check ]; then
  mode=(--dry-run --Werror)
  shift
fi
files=("$@")
if [ ${#files[@]} -eq 0 ]; then
  mapfile -t files < <(find include src models data kernels tests -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) | sort)
fi
"$formatter" --style=file "${mode[@]}" "${files[@]}"
