#!/usr/bin/env bash
# Run the C++ side under sanitizers: AddressSanitizer and UndefinedBehaviorSanitizer for the tests
# of ops, graphs and instruction streams, ThreadSanitizer for threads that share ops and the
# modelled NPU.
set -euo pipefail
python="$(pwd)/$VENV/bin/python"

# configure FOLDER SANITIZERS
configure() {
  "$VENV/bin/cmake" -S . -B "$1" -G Ninja -DCMAKE_MAKE_PROGRAM="$(pwd)/$VENV/bin/ninja" \
    -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" \
    -DORT_AIE_SANITIZE="$2" -DORT_AIE_WARNINGS_AS_ERRORS=ON -DPython_EXECUTABLE="$python" \
    -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" >/dev/null
}

echo "== AddressSanitizer and UndefinedBehaviorSanitizer"
build=build/sanitize
configure "$build" address,undefined
"$VENV/bin/ninja" -C "$build" --quiet _native ort_aie_ep ort_aie_ep_stub
# A copy of the installed package, with the sanitized binaries in place of its own.
package="$build/package/ort_aie_ep"
rm -rf "$package" && mkdir -p "$build/package"
cp -r "$(cd / && "$python" -c 'import ort_aie_ep, pathlib; print(pathlib.Path(ort_aie_ep.__file__).parent)')" "$package"
cp "$build"/_native*.so "$build"/libort_aie_ep*.so "$package"
# Python itself is not instrumented: preload the runtimes, and ignore its leaks. libstdc++ is
# preloaded so that exceptions can be intercepted. Some tests request impossible sizes on purpose; a
# memory limit would leave no room for AddressSanitizer's own memory. pytest must not capture a
# sanitizer's last words before it ends a process; grep finds them among ONNX Runtime's output.
preload="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so.6)"
LD_PRELOAD="$preload" ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
  PYTHONPATH="$(pwd)/$build/package" "$python" -m pytest -q --capture=sys -p no:cacheprovider ${PARALLEL:-} tests/ops \
  --ignore tests/ops/test_memory_limits.py \
  tests/graph tests/npu/test_{txn,transfers,streams,stream_cache,manifests}.py 2>"$build/stderr" || {
  grep -E -A 20 'runtime error|ERROR: AddressSanitizer' "$build/stderr" | head -n 200
  exit 1
}

echo "== ThreadSanitizer"
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
