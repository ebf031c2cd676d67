#!/usr/bin/env bash
# Test against the real XRT of Debian sid, with the libc that it needs, on a machine without an NPU:
# loading, the message, and the fallback to the host. A package without the xrt target fails.
set -euo pipefail
python="$(pwd)/$VENV/bin/python"
library=$(cd / && "$python" -c 'import ort_aie_ep; print(ort_aie_ep.library_path())')
if [ ! -f "$(dirname "$library")/libort_aie_xrt.so" ]; then
  echo "the installed package has no libort_aie_xrt.so: it was built without XRT's headers" >&2
  exit 1
fi
echo "== XRT without an NPU: $("$python" tests/xrt/real_xrt/private_root.py)"
env -u ORT_AIE_SKIP_REAL_XRT "$python" -m pytest -q -m in_turn tests/xrt/real_xrt
