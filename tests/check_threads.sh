#!/usr/bin/env bash
# Run threads that share ops and the modelled NPU under ThreadSanitizer.
set -euo pipefail
python="$(pwd)/$VENV/bin/python"
# shellcheck source=tests/sanitized_build.sh
source tests/sanitized_build.sh

build="$(pwd)/build/thread"
mkdir -p "$build"
# Whether a program works that holds nothing but the runtime, started by "$@".
works() { "$@" "$build/probe" >"$build/probe.log" 2>&1; }
# Some runtimes cannot handle the addresses that kernels with vm.mmap_rnd_bits above 28 give, and
# run only with address randomisation off. Some containers do not allow setarch.
fixed=()
if ! c++ -fsanitize=thread -o "$build/probe" -x c++ - <<<'int main() {}' 2>"$build/probe.log"; then
  echo "not run: this compiler has no ThreadSanitizer: $(tail -n 1 "$build/probe.log")"
  exit
fi
if ! works; then
  fixed=(setarch "$(uname -m)" -R)
  if ! works "${fixed[@]}"; then
    echo "not run: ThreadSanitizer does not work on this machine: $(tail -n 1 "$build/probe.log")"
    exit
  fi
fi
configure "$build" thread
if [ ! -f "$build/tests/xrt/xrt_library" ]; then
  echo "not run: there are no XRT headers"
  exit
fi
"$VENV/bin/ninja" -C "$build" --quiet threads_test
ORT_AIE_SIM_PYTHON="$python" ORT_AIE_TRACE="$build/trace.json" XDG_CACHE_HOME="$build" \
  timeout 600 "${fixed[@]}" "$build/tests/xrt/threads_test" 3
echo "no race"
