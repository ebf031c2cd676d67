#!/usr/bin/env bash
# Run the suites of what is kept as text (recipes, contexts, manifests, traces) in processes whose
# numbers have a decimal comma.
set -euo pipefail
python="$VENV/bin/python"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if ! localedef -i de_DE -f UTF-8 "$folder/de_DE.UTF-8"; then
  echo "not run: the locale de_DE cannot be made: install the package locales" >&2
  exit 0
fi
export LOCPATH="$folder" LC_ALL=de_DE.UTF-8 PYTHONPATH="$PWD/tests/decimal_comma"
"$python" -c 'import locale; assert locale.localeconv()["decimal_point"] == ","'
# shellcheck disable=SC2086 # several words
"$python" -m pytest -q ${PARALLEL:-} tests/ops/test_crafted_models.py \
  tests/ops/test_provider_context.py tests/ops/test_trace.py tests/passes/test_planning.py \
  tests/npu/test_manifests.py tests/npu/test_stream_cache.py
