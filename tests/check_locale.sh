#!/usr/bin/env bash
# Run the suites of what is kept as text (recipes, contexts, manifests, traces) in processes whose
# locale has another decimal point: a comma in German, and a character of two bytes in Pashto.
set -euo pipefail
python="$VENV/bin/python"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export LOCPATH="$folder" PYTHONPATH="$PWD/tests/decimal_comma"

run_in() {
  if ! localedef -i "$1" -f UTF-8 "$folder/$1.UTF-8"; then
    echo "not run: the locale $1 cannot be made: install the package locales" >&2
    exit 0
  fi
  echo "== LC_ALL=$1.UTF-8"
  LC_ALL="$1.UTF-8" "$python" -c \
    'import locale; assert locale.localeconv()["decimal_point"] != "."'
  # shellcheck disable=SC2086 # several words
  LC_ALL="$1.UTF-8" "$python" -m pytest -q ${PARALLEL:-} "${@:2}"
}

manifests=(tests/npu/test_manifests.py tests/npu/test_stream_cache.py)
run_in de_DE tests/ops/test_crafted_models.py tests/ops/test_provider_context.py \
  tests/ops/test_trace.py tests/passes/test_planning.py "${manifests[@]}"
# Here ml_dtypes cannot be imported, and so no model can be compiled.
run_in ps_AF "${manifests[@]}"
