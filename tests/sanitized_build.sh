# Sourced by check_sanitizers.sh and check_threads.sh.
# shellcheck shell=bash disable=SC2154 # python, which who sources this has

# configure FOLDER SANITIZERS [OPTION...]
configure() {
  "$VENV/bin/cmake" -S . -B "$1" -G Ninja -DCMAKE_MAKE_PROGRAM="$(pwd)/$VENV/bin/ninja" \
    -DCMAKE_CXX_FLAGS_RELEASE="-Og -DNDEBUG" \
    -DORT_AIE_SANITIZE="$2" -DORT_AIE_WARNINGS_AS_ERRORS=ON -DPython_EXECUTABLE="$python" \
    -Dpybind11_DIR="$("$python" -m pybind11 --cmakedir)" "${@:3}" >/dev/null
}
