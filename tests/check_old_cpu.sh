#!/usr/bin/env bash
# The kernels on a CPU of 2008 (no AVX at all), emulated: nothing above the baseline may leak into
# the portable path.
set -euo pipefail
if ! command -v qemu-x86_64 >/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq && apt-get install -qq -y --no-install-recommends qemu-user >/dev/null
  else
    echo "qemu-x86_64 is missing: install the package qemu-user" >&2
    exit 1
  fi
fi
python=$("$VENV/bin/python" -c 'import os, sys; print(os.path.realpath(sys.executable))')
site=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "== qemu-x86_64 -cpu Nehalem"
# qemu-user runs no script through a virtual environment's link: the real binary gets its packages.
# numpy carries an OpenBLAS that picks its kernels badly under emulation unless it is told.
OPENBLAS_CORETYPE=Nehalem PYTHONPATH="$site" qemu-x86_64 -cpu Nehalem "$python" -m pytest -q \
  tests/ops/test_kernels.py tests/ops/test_lookup_kernels.py
