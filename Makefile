# Everything happens in virtual environments below .venv; nothing is installed on the machine.
PYTHON ?= python3
VENV := .venv
# Python must not find the source folder before the installed package of the same name.
export PYTHONSAFEPATH := 1
# The oldest ONNX Runtime that is supported, in an environment of its own.
OLDEST_ORT := 1.23.2

SOURCES := $(shell find src cmake graph_passes ort_aie_ep -type f -not -path '*/__pycache__/*') \
           CMakeLists.txt pyproject.toml

# The model to measure with other engines, made with its vocabulary of 128256 if it is not there;
# OPTIONS go to ort-aie bench.
BENCH_MODEL ?= $(VENV)/bench/llama-3.2-1b
OPTIONS ?=

.PHONY: demo test lint check bench kernel-bench clean

demo: $(VENV)/ready
	$(VENV)/bin/ort-aie demo

# The suite on the newest ONNX Runtime and on the oldest.
test: $(VENV)/test-ready $(VENV)/oldest/ready
	$(VENV)/bin/python -m pytest
	$(VENV)/oldest/bin/python -m pytest --ignore tests/build

# What continuous integration runs besides `test`: every instruction set, an old CPU, sanitizers.
check: $(VENV)/test-ready
	VENV=$(VENV) bash tests/check_isas.sh
	VENV=$(VENV) bash tests/check_old_cpu.sh
	VENV=$(VENV) bash tests/check_sanitizers.sh

# Beside llama.cpp and OpenVINO, half an hour; the first run builds llama.cpp for this CPU.
bench: $(VENV)/bench/ready
	test -d $(BENCH_MODEL) || $(VENV)/bench/bin/ort-aie synth llama-3.2-1b $(BENCH_MODEL) --vocab 32000
	$(VENV)/bench/bin/ort-aie bench --peers $(BENCH_MODEL) --out $(VENV)/bench/results $(OPTIONS)

# Each kernel beside the limits of this CPU; OPTIONS go to kernels_bench.
kernel-bench: $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet cmake ninja pybind11
	$(VENV)/bin/cmake -S . -B build/kernel-bench -G Ninja \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(VENV)/bin/ninja) \
	  -DPython_EXECUTABLE=$(abspath $(VENV)/bin/python) \
	  -Dpybind11_DIR=$$($(VENV)/bin/python -m pybind11 --cmakedir) >/dev/null
	$(VENV)/bin/ninja -C build/kernel-bench --quiet kernels_bench
	build/kernel-bench/kernels_bench $(OPTIONS)

lint: $(VENV)/lint-ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy ort_aie_ep graph_passes
	find src -name '*.cc' -o -name '*.h' | xargs $(VENV)/bin/clang-format --dry-run --Werror

clean:
	rm -rf $(VENV) build dist

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/ready: $(VENV)/bin/python $(SOURCES)
	$(VENV)/bin/python -m pip install --quiet '.[genai]'
	touch $@

$(VENV)/test-ready: $(VENV)/ready
	$(VENV)/bin/python -m pip install --quiet '.[genai,test]'
	touch $@

$(VENV)/lint-ready: $(VENV)/test-ready
	$(VENV)/bin/python -m pip install --quiet '.[lint]'
	touch $@

# The C++ side does not depend on the ONNX Runtime that is installed: one wheel serves both.
$(VENV)/oldest/ready: $(VENV)/bin/python $(SOURCES)
	$(PYTHON) -m venv $(VENV)/oldest
	$(VENV)/oldest/bin/python -m pip install --quiet 'onnxruntime==$(OLDEST_ORT)' '.[test]'
	touch $@

$(VENV)/bench/ready: $(VENV)/bin/python $(SOURCES)
	$(PYTHON) -m venv $(VENV)/bench
	CMAKE_ARGS='-DGGML_NATIVE=ON' $(VENV)/bench/bin/python -m pip install --quiet '.[bench]'
	touch $@
