#!/usr/bin/env bash
# The tests of ops and of instruction streams with the C++ side under AddressSanitizer and
# UndefinedBehaviorSanitizer.
set -euo pipefail
python="$(pwd)/$VENV/bin/python"
build=build/sanitize
"$python" -m pip install --quiet cmake ninja pybind11 nlohmann_json
"$VENV/bin/cmake" -S . -B "$build" -G Ninja -DCMAKE_MAKE_PROGRAM="$(pwd)/$VENV/bin/ninja" \
  -DORT_AIE_SANITIZE=ON -DORT_AIE_WARNINGS_AS_ERRORS=ON -DPython_EXECUTABLE="$python" \
  -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" >/dev/null
"$VENV/bin/ninja" -C "$build" --quiet
# The installed package with the sanitized binaries in its place.
package="$build/package/ort_aie_ep"
rm -rf "$package" && mkdir -p "$build/package"
cp -r "$(cd / && "$python" -c 'import ort_aie_ep, pathlib; print(pathlib.Path(ort_aie_ep.__file__).parent)')" "$package"
cp "$build"/_native*.so "$build"/libort_aie_ep*.so "$package"
echo "== AddressSanitizer and UndefinedBehaviorSanitizer"
# Python itself is not instrumented: the runtimes come first, and its own leaks are not ours.
# libstdc++ is preloaded so that exceptions can be intercepted.
preload="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so.6)"
LD_PRELOAD="$preload" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
  PYTHONPATH="$(pwd)/$build/package" "$python" -m pytest -q -p no:cacheprovider tests/ops \
  tests/npu/test_{txn,transfers,streams,stream_cache,manifests}.py
