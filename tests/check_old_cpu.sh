#!/usr/bin/env bash
# Run the kernels on an emulated CPU from 2008 (no AVX at all): nothing above the baseline may leak
# into the portable path. Not the stand-in for AMX, which no wheel has.
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
# qemu-user cannot run Python through a virtual environment's link, so the real binary gets the
# environment's packages. numpy's OpenBLAS picks its kernels badly under emulation by default.
OPENBLAS_CORETYPE=Nehalem PYTHONPATH="$site" qemu-x86_64 -cpu Nehalem "$python" -m pytest -q \
  tests/ops/test_kernels.py tests/ops/test_lookup_kernels.py -k "not amx_standin"
