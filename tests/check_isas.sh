#!/usr/bin/env bash
# Run the op tests with other kernels than the CPU would choose: check_isas.sh [ISA...]; without a name,
# with all that it has. Not those that try every instruction set by themselves, in `make test`, and those
# of files, options, memory, errors and what a door claims, which no kernel has a part in.
set -euo pipefail
python="$VENV/bin/python"
same=()
for name in amx avx512_bf16 byte_kernels kernel_choice kernels lookup_kernels context_writers cost_of_a_call crafted_models \
  execution_provider flow_attention_errors memory_limits options overridden_initializers provider_context stoppable trace; do
  same+=(--ignore "tests/ops/test_$name.py")
done
isas=${*:-$("$python" -c 'from ort_aie_ep import _native
print(*[i for i in _native.available_isas() if i != _native.selected_isa()])')}
for isa in $isas; do
  echo "== ORT_AIE_ISA=$isa"
  # shellcheck disable=SC2086 # several words
  ORT_AIE_ISA="$isa" "$python" -m pytest -q ${PARALLEL:-} tests/ops "${same[@]}"
done
