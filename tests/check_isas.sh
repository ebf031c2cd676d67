#!/usr/bin/env bash
# The op tests with each instruction set that this CPU has but would not choose by itself.
set -euo pipefail
python="$VENV/bin/python"
for isa in $("$python" -c 'from ort_aie_ep import _native
print(*[i for i in _native.available_isas() if i != _native.selected_isa()])'); do
  echo "== ORT_AIE_ISA=$isa"
  ORT_AIE_ISA="$isa" "$python" -m pytest -q tests/ops
done
