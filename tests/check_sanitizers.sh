#!/usr/bin/env bash
# Run the C++ side under AddressSanitizer and UndefinedBehaviorSanitizer: check_sanitizers.sh files-and-kernels,
# the tests of what parses files (models, graphs, instruction streams) and of kernels; check_sanitizers.sh all,
# the other tests of ops.
set -euo pipefail
python="$(pwd)/$VENV/bin/python"
ops=(tests/ops/test_{crafted_models,provider_context,context_writers,options}.py
  tests/ops/test_{kernels,lookup_kernels}.py)
case ${1:-all} in
  # A limit of memory leaves no room for AddressSanitizer's own.
  all) tests=(tests/ops --ignore tests/ops/test_memory_limits.py "${ops[@]/#/--ignore=}") ;;
  # Predictions of NPU2's designs take the simulator long, and run the code that NPU1's run.
  files-and-kernels)
    tests=("${ops[@]}" tests/corpus/test_each_door.py tests/graph tests/npu/test_{txn,transfers,streams,stream_cache,manifests}.py
      -k "not (prediction and npu2)") ;;
  *) echo "expected all or files-and-kernels, got $1" >&2 && exit 1 ;;
esac
# shellcheck source=tests/sanitized_build.sh
source tests/sanitized_build.sh

echo "== AddressSanitizer and UndefinedBehaviorSanitizer"
build=build/sanitize
configure "$build" address,undefined -DORT_AIE_STANDINS=ON
"$VENV/bin/ninja" -C "$build" --quiet _native _npu ort_aie_ep ort_aie_ep_stub
# A copy of the installed package, with the sanitized binaries in place of its own.
package="$build/package/ort_aie_ep"
rm -rf "$package" && mkdir -p "$build/package"
cp -rL "$("$python" -P -c 'import ort_aie_ep, pathlib; print(pathlib.Path(ort_aie_ep.__file__).parent)')" "$package"
cp "$build"/_native*.so "$build"/_npu*.so "$build"/libort_aie_ep*.so "$package"
# Python itself is not instrumented: preload the runtimes, and ignore its leaks. libstdc++ is
# preloaded so that exceptions can be intercepted. Some tests request impossible sizes on purpose.
# pytest must not capture a sanitizer's last words before it ends a process; grep finds them among
# ONNX Runtime's output.
preload="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so.6)"
LD_PRELOAD="$preload" ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
  PYTHONSAFEPATH=1 PYTHONPATH="$(pwd)/$build/package" "$python" -m pytest -q --capture=sys -p no:cacheprovider ${PARALLEL:-} \
  "${tests[@]}" 2>"$build/stderr" || {
  grep -E -A 20 'runtime error|ERROR: AddressSanitizer' "$build/stderr" | head -n 200
  exit 1
}
