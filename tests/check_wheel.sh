#!/usr/bin/env bash
# The wheel in dist/ as its users get it: in empty environments, without a compiler on PATH and without
# these sources. First the base alone, then what compiles models.
set -euo pipefail
python=$("$PYTHON" -c 'import os, sys; print(os.path.realpath(sys.executable))')
tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
wheel=$(echo "$(pwd)"/dist/ort_aie_ep-*-"$tag"-*manylinux*.whl)
[ -f "$wheel" ] || { echo "dist/ has no wheel for $tag: make wheels PYTHONS=$PYTHON" >&2; exit 1; }

work=$(mktemp -d)
rm=$(command -v rm) grep=$(command -v grep)
trap '"$rm" -rf "$work"' EXIT
cp -r tests "$work/tests"
cp pyproject.toml "$work" # the settings of pytest
cd "$work"
unset PYTHONPATH PYTHONHOME LD_LIBRARY_PATH LD_PRELOAD CXX CC
export PYTHONSAFEPATH=1

# enter NAME: a new environment, whose programs are all that PATH has.
enter() {
  "$python" -m venv "$work/$1"
  export PATH="$work/$1/bin"
}

# fails WORDS COMMAND...: the command ends with an error that has the words.
fails() {
  local words=$1
  shift
  if "$@" >"$work/said" 2>&1; then
    echo "$* should have failed, with: $words" >&2
    exit 1
  fi
  "$grep" -qF -- "$words" "$work/said" || {
    echo "$* should have said: $words; it said:" >&2
    echo "$(<"$work/said")" >&2
    exit 1
  }
}

echo "== ${wheel##*/}: the base alone"
enter base
python -m pip install -qq --disable-pip-version-check "$wheel"
python - <<'PYTHON'
import importlib.metadata
import sys
from pathlib import Path

import ort_aie_ep

packages = {d.name for d in importlib.metadata.distributions()} - {"pip", "setuptools"}
assert packages == {"ort_aie_ep"}, f"the base has brought other packages: {packages}"
brought = {"numpy", "onnxruntime"} & set(sys.modules)
assert not brought, f"importing the package imports {brought}"
assert Path(ort_aie_ep.get_library_path()).is_file()
PYTHON
fails "-m pip install" ort-aie demo
fails "-m pip install" python -c 'import ort_aie_ep; ort_aie_ep.compile("model", "compiled")'

echo "== the base with an onnxruntime: a session on the execution provider"
python -m pip install -qq --disable-pip-version-check onnxruntime
python - <<'PYTHON'
from importlib.resources import files

import onnxruntime

import ort_aie_ep

name, library = ort_aie_ep.get_ep_name(), ort_aie_ep.get_library_path()
onnxruntime.register_execution_provider_library(name, library)
devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == name]
assert devices, f"the library offers no device of {name}"
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(library)
options.add_provider_for_devices(devices[:1], {})
(model,) = (m for m in files("ort_aie_ep").rglob("model.onnx"))
session = onnxruntime.InferenceSession(model, options)
assert name in session.get_providers(), session.get_providers()
PYTHON

echo "== with the extras tools and genai: the demonstration"
enter tools
SECONDS=0
python -m pip install -qq --disable-pip-version-check "${wheel}[tools,genai]"
installed=$SECONDS
ort-aie demo >demo.txt
"$grep" -q "ONNX Runtime with ort_aie_ep" demo.txt
echo "from pip install to its text: $SECONDS s, of which pip took $installed s"

echo "== no XRT here, and the NPU's library is there"
python - <<'PYTHON'
import ctypes
from pathlib import Path

import ort_aie_ep
from ort_aie_ep.explain.doctor import find_xrt_target

folder = Path(ort_aie_ep.get_library_path()).parent
try:
    ctypes.CDLL(str(folder / "libort_aie_xrt.so"))
except OSError as error:
    assert "libxrt_coreutil.so.2" in str(error), error
    found = find_xrt_target(xrt=False)
    assert found.found == "built; XRT is not installed", found
PYTHON

echo "== tests of both doors and of the modelled NPU"
python -m pip install -qq --disable-pip-version-check "${wheel}[test]"
# Not of the kernels: their object code is that of the plain build, which the suite tests.
python -m pytest -q -n auto --dist worksteal -p no:cacheprovider tests/ops/test_q4nx_matmul.py \
  tests/ops/test_execution_provider.py tests/ops/test_trace.py \
  tests/xrt/test_models_on_npu.py::test_a_prompt_and_tokens_are_those_of_the_host_and_as_predicted
