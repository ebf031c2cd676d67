#!/usr/bin/env bash
# Build the library for Windows on this machine, look at its object code, and run it under Wine in the
# onnxruntime.dll of ONNX Runtime's own wheels (tests/windows).
set -euo pipefail
[ "$(uname -sm)" = "Linux x86_64" ] || { echo "this needs Linux on x86-64" >&2; exit 1; }
if ! command -v wine >/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq && apt-get install -qq -y --no-install-recommends wine wine64 >/dev/null
  else
    echo "wine is missing: install the packages wine and wine64" >&2
    exit 1
  fi
fi
tools=$(pwd)/$VENV/windows/bin
build=$(pwd)/build/windows
PATH=$tools:$PATH
# Neither a compiler cache nor flags of a build for this machine.
unset CMAKE_CXX_COMPILER_LAUNCHER CXXFLAGS LDFLAGS

echo "== zig $("$tools/python" -m ziglang version): the libraries"
cmake -S . -B "$build" -G Ninja --toolchain cmake/windows-zig.cmake -DORT_AIE_PYTHON=OFF \
  -DORT_AIE_WARNINGS_AS_ERRORS=ON >/dev/null
ninja -C "$build" --quiet ort_aie_ep ort_aie_ep_stub windows_host

for version in $ORTS; do
  folder=$build/onnxruntime-$version
  [ -d "$folder" ] && continue
  "$tools/python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --platform win_amd64 --python-version 3.11 --dest "$build/wheels" "onnxruntime==$version"
  "$tools/python" -m zipfile -e "$build/wheels/onnxruntime-$version"-*.whl "$build/wheels/$version"
  mv "$build/wheels/$version/onnxruntime/capi" "$folder"
done

echo "== $(wine --version)"
export WINEPREFIX=$build/wine WINEDEBUG=-all ORT_AIE_WINDOWS_BUILD=$build
wine wineboot --init >/dev/null 2>&1
"$VENV/bin/python" -m pytest -q tests/windows
