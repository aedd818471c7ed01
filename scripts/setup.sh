#!/usr/bin/env bash
# Installs what the build and the tests need: packages of Debian 12 or Ubuntu 24.04 (root or sudo), and a .venv with
# LibTorch (the torch wheel), CMake and Ninja. If everything is installed it does nothing and needs no network.
# scripts/lib.sh lists the environment variables.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
source scripts/lib.sh

setup_all
progress "ready: scripts/test.sh builds and tests, scripts/quickstart.sh shows a complete run"
