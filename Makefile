# Everything happens in virtual environments below .venv; nothing is installed on the machine.
PYTHON ?= python3
VENV := .venv
# Python must not find the source folder before the installed package of the same name.
export PYTHONSAFEPATH := 1
# Tests that one process has compiled the next need not.
unexport PYTHONDONTWRITEBYTECODE
# The wheel and the programs of tests have most of their objects in common.
export CMAKE_CXX_COMPILER_LAUNCHER ?= $(shell command -v ccache)
# The oldest ONNX Runtime that is supported, and those between it and the newest that `check` takes:
# the first that has what the provider needs, that of the headers that apt has, and the one before
# the newest.
OLDEST_ORT := 1.23.2
PROVIDER_ORTS := 1.24.4 1.27.0 1.31.1
# One that is too old, which the library refuses: tests/build/test_packages.py.
TOO_OLD_ORT := 1.22.1
CHECK_ORTS := $(PROVIDER_ORTS:%=check-ort-%)
# Parts of `check` that are scripts, tests/check_*.sh.
CHECK_SCRIPTS := check-sanitizers check-isas check-locale check-old-cpu check-real-xrt check-mlir
# These know nothing of ONNX Runtime: they open no session, or sessions are not what they test. The
# newest runs all tests, the oldest those without these; a folder that is new runs on both. The server
# and Ray are installed beside the newest alone.
NEWEST_ALONE := $(addprefix --ignore=tests/, \
  aie_kernels batch build checkpoint designs fused_decode fuzz graph mlir npu q4nx serving speed xrt \
  test_command_progress.py test_corpus.py test_docs.py test_explain_npu.py test_layers.py test_machine.py \
  test_peers_report.py test_platforms.py test_site.py windows)
# Nor do those of tests/ops that call kernels, tables of them and programs in C++.
OPS_NEWEST_ALONE := $(addprefix tests/ops/test_, \
  amx.py byte_kernels.py cost_of_a_call.py kernel_choice.py kernels.py lookup_kernels.py)
NEWEST_ALONE += $(OPS_NEWEST_ALONE:%=--ignore=%)
# The only one of the rest that takes over 5 s, for the modelled NPU.
NEWEST_ALONE += --deselect=tests/ops/test_trace.py::test_one_timeline_has_the_host_and_the_npu
# A process for each core. What a module's tests share is made once, mostly: each process starts with
# neighbouring tests, and takes neighbours from another when it has none.
PARALLEL := -n auto --dist worksteal

SOURCES := $(shell find src cmake graph_passes aie_kernels ort_aie_ep -type f -not -path '*/__pycache__/*') \
           CMakeLists.txt pyproject.toml

# The model to measure with other engines, made with its vocabulary of 128256 if it is not there;
# OPTIONS go to ort-aie bench.
BENCH_MODEL ?= $(VENV)/bench/llama-3.2-1b
OPTIONS ?=

ISSUE_FORMS = $(filter-out %/config.yml, $(wildcard .github/ISSUE_TEMPLATE/*.yml))

# Reads the NPU kernels against the AIE API's headers: 19 or later.
CLANG ?= clang++-19

# Seconds for each fuzz target, and where corpora and findings are kept.
FUZZ_SECONDS ?= 120
FUZZ_FOLDER ?= .cache/fuzz

.PHONY: demo test lint check docs wheels windows real-headers $(CHECK_ORTS) $(CHECK_SCRIPTS) check-wheel \
        bench kernel-bench fuzz fuzz-replay fuzz-ready clean

demo: $(VENV)/ready
	$(VENV)/bin/ort-aie demo

# The suite on the newest ONNX Runtime, and what depends on ONNX Runtime on the oldest.
test: $(VENV)/test-ready $(VENV)/onnxruntime-$(TOO_OLD_ORT)/ready $(VENV)/ort-$(OLDEST_ORT)/ready
	$(VENV)/bin/python -m pytest $(PARALLEL)
	$(VENV)/ort-$(OLDEST_ORT)/bin/python -m pytest $(PARALLEL) $(NEWEST_ALONE)

# What continuous integration runs besides `test`. The parts are independent, and one waits for a
# download or has a single process while another computes: make -j2 -O check. The longest come first.
# Environments are copied before tests compile modules in what they are copied from. Fuzzing is alone,
# as an input that takes seconds is a finding.
check: $(PROVIDER_ORTS:%=$(VENV)/ort-%/ready)
	$(MAKE) check-sanitizers check-wheel $(CHECK_ORTS) $(CHECK_SCRIPTS) docs
	$(MAKE) fuzz FUZZ_SECONDS=10

# Every instruction set, a decimal comma, an old CPU, MLIR's own reader, the real XRT, sanitizers.
$(CHECK_SCRIPTS): check-%: $(VENV)/test-ready
	MAKEFLAGS= VENV=$(VENV) PARALLEL="$(PARALLEL)" bash tests/check_$(subst -,_,$*).sh

# The wheel of this Python as it is released, in an empty environment.
check-wheel:
	$(MAKE) wheels PYTHONS=$(PYTHON)
	PYTHON=$(PYTHON) bash tests/check_wheel.sh

# The NPU kernels, and the stand-in that tests compile them against, beside the real headers:
# make real-headers AIE_API=a checkout of github.com/Xilinx/aie_api; WRITE=1 renews the list of
# signatures that tests hold the stand-in to.
real-headers: $(VENV)/test-ready
	$(if $(AIE_API),,$(error AIE_API is not set: a checkout of github.com/Xilinx/aie_api))
	$(VENV)/bin/python lab/check_aie_api.py $(AIE_API) --clang $(CLANG) $(if $(WRITE),--write)

# The execution provider and whole models through both doors, on one version of ONNX Runtime.
$(CHECK_ORTS): check-ort-%: $(VENV)/ort-%/ready
	$(VENV)/ort-$*/bin/python -m pytest -q $(PARALLEL) $(NEWEST_ALONE) tests/models \
	  $(filter-out $(OPS_NEWEST_ALONE),$(shell grep -l provider tests/ops/test_*.py))

# Beside llama.cpp, ik_llama.cpp (where it has a wheel: its source archive does not build) and
# OpenVINO, half an hour; the first run builds llama.cpp for this CPU. The page of a CPU is what it
# writes: cp .venv/bench/results/bench.md .venv/bench/results/bench.png docs/results/CPU/
bench: $(VENV)/bench/ready
	test -d $(BENCH_MODEL) || $(VENV)/bench/bin/ort-aie synth llama-3.2-1b $(BENCH_MODEL) --vocab 32000
	$(VENV)/bench/bin/ort-aie bench --peers $(BENCH_MODEL) --out $(VENV)/bench/results $(OPTIONS)

# Each kernel beside the limits of this CPU; OPTIONS go to kernels_bench.
kernel-bench: $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet cmake ninja pybind11 nlohmann_json
	$(VENV)/bin/cmake -S . -B build/kernel-bench -G Ninja \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV)/bin/ninja) \
	  -DPython_EXECUTABLE=$(abspath $(VENV)/bin/python) \
	  -Dpybind11_DIR=$$($(VENV)/bin/python -m pybind11 --cmakedir) >/dev/null
	$(VENV)/bin/ninja -C build/kernel-bench --quiet kernels_bench
	build/kernel-bench/kernels_bench $(OPTIONS)

# Each fuzz target (docs/fuzzing.md) on what earlier runs have found; OPTIONS go to fuzz.py.
fuzz: fuzz-ready
	PYTHONSAFEPATH= $(VENV)/bin/python tests/fuzz/fuzz.py --seconds $(FUZZ_SECONDS) --folder $(FUZZ_FOLDER) $(OPTIONS)

# One input once more: make fuzz-replay TARGET=npu_manifest INPUT=FILE
fuzz-replay: fuzz-ready
	PYTHONSAFEPATH= $(VENV)/bin/python tests/fuzz/fuzz.py --replay $(INPUT) $(TARGET)

# Atheris has wheels for some Pythons and systems; fuzz.py says what is not run.
fuzz-ready: $(VENV)/test-ready
	-$(VENV)/bin/python -m pip install --quiet atheris

lint: $(VENV)/lint-ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy ort_aie_ep graph_passes aie_kernels
	find src aie_kernels examples tests -name '*.cc' -o -name '*.h' -o -name '*.hpp' | xargs $(VENV)/bin/clang-format --dry-run --Werror
	$(VENV)/bin/actionlint -shellcheck $(VENV)/bin/shellcheck
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-issue-forms $(ISSUE_FORMS)
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(VENV)/bin/shellcheck --severity=warning .ci/run $(shell find cmake tests -name '*.sh')

# The site of docs/ (mkdocs.yml), into site/. REPO_URL=https://HOST/OWNER/NAME makes links to sources
# lead into the repository. Not --quiet: MkDocs then counts no warnings, and nothing would fail.
docs: $(VENV)/docs/ready
	NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build --strict

# The sdist and, from it, a wheel for each CPython that is found, into dist/; PYTHONS="python3.12 ..."
# names others, CXX another GCC than g++.
wheels: $(VENV)/wheels/ready
	PYTHONSAFEPATH= $(VENV)/wheels/bin/python release/build_wheels.py $(PYTHONS)

# The library for Windows, cross-built, and under Wine in ONNX Runtime's own DLLs (docs/windows.md).
windows: $(VENV)/test-ready $(VENV)/windows/ready
	VENV=$(VENV) ORTS="$(OLDEST_ORT) $(firstword $(PROVIDER_ORTS)) 1.32.0" bash tests/check_windows.sh

clean:
	rm -rf $(VENV) build dist site

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# One wheel serves every environment: the C++ side does not depend on the ONNX Runtime that is
# installed.
$(VENV)/dist/ready: $(VENV)/bin/python $(SOURCES)
	rm -rf $(VENV)/dist
	$(VENV)/bin/python -m pip wheel --quiet --no-deps --wheel-dir $(VENV)/dist .
	touch $@

# $(call install,environment,extras,what besides): pip keeps a package whose version did not change,
# so the wheel comes by force and then what it needs. Modules are compiled when they are first
# imported: most never are.
define install
	$(1)/bin/python -m pip install --quiet --no-compile --force-reinstall --no-deps $(VENV)/dist/*.whl
	$(1)/bin/python -m pip install --quiet --no-compile $(3) "$$(echo $(VENV)/dist/*.whl)[$(2)]"
endef

$(VENV)/ready: $(VENV)/dist/ready
	$(call install,$(VENV),genai)
	touch $@

# With what builds the programs of tests, sanitized ones and fuzz targets.
$(VENV)/test-ready: $(VENV)/ready
	$(call install,$(VENV),test-newest,cmake ninja pybind11)
	touch $@

# Python 3.14 is newer than any of its wheels: the tests that it is for are skipped there, and only there.
$(VENV)/onnxruntime-$(TOO_OLD_ORT)/ready: $(VENV)/bin/python
	mkdir -p $(@D)
	$(VENV)/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 14))' || \
	  $(VENV)/bin/python -m pip install --quiet --no-compile --no-deps --only-binary :all: --target $(@D) onnxruntime==$(TOO_OLD_ORT)
	touch $@

$(VENV)/lint-ready: $(VENV)/test-ready
	$(call install,$(VENV),lint)
	touch $@

# A copy by links of the packages that are there, without genai, which wants the newest ONNX Runtime:
# pip replaces what differs.
$(VENV)/ort-%/ready: $(VENV)/test-ready
	$(PYTHON) -m venv --clear --without-pip $(VENV)/ort-$*
	cp -rlf $(VENV)/lib/. $(VENV)/ort-$*/lib/
	$(VENV)/ort-$*/bin/python -m pip uninstall --quiet --yes onnxruntime-genai
	$(call install,$(VENV)/ort-$*,test,onnxruntime==$*)
	touch $@

$(VENV)/bench/ready: $(VENV)/bin/python $(SOURCES)
	$(PYTHON) -m venv $(VENV)/bench
	CMAKE_ARGS='-DGGML_NATIVE=ON' $(VENV)/bench/bin/python -m pip install --quiet '.[bench]'
	-$(VENV)/bench/bin/python -m pip install --quiet --only-binary :all: ik-llama-cpp-python==0.1.5
	touch $@

# The extra alone, without the package that it belongs to.
$(VENV)/docs/ready $(VENV)/wheels/ready $(VENV)/windows/ready: $(VENV)/%/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)/$*
	$(PYTHON) -c "import tomllib; print(*tomllib.load(open('$<', 'rb'))['project']['optional-dependencies']['$*'], sep='\n')" \
	  | $(VENV)/$*/bin/python -m pip install --quiet --no-compile --requirement /dev/stdin
	touch $@
