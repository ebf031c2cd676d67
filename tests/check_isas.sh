#!/usr/bin/env bash
# Run the op tests with each instruction set that this CPU has but would not choose by itself.
# The kernels' tests try every instruction set in `make test`.
set -euo pipefail
python="$VENV/bin/python"
for isa in $("$python" -c 'from ort_aie_ep import _native
print(*[i for i in _native.available_isas() if i != _native.selected_isa()])'); do
  echo "== ORT_AIE_ISA=$isa"
  # shellcheck disable=SC2086 # several words
  ORT_AIE_ISA="$isa" "$python" -m pytest -q ${PARALLEL:-} tests/ops \
    --ignore tests/ops/test_kernels.py --ignore tests/ops/test_lookup_kernels.py
done
