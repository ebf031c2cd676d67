#!/usr/bin/env bash
# Run MLIR's own parser on every design as it is printed for mlir-aie, and the other tests of tests/mlir that are in_turn.
set -euo pipefail
if ! command -v mlir-opt-19 >/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq && apt-get install -qq -y --no-install-recommends mlir-19-tools >/dev/null
  else
    echo "mlir-opt-19 is missing: install the package mlir-19-tools" >&2
    exit 1
  fi
fi
echo "== $(mlir-opt-19 --version | grep -o 'version [0-9.]*')"
# shellcheck disable=SC2086 # several words
"$VENV/bin/python" -m pytest -q ${PARALLEL:-} -m in_turn tests/mlir
