# make demo and make test set up everything they need: a Python environment in .venv, the CUDA
# compiler if none is installed, and the build in build/. A second run does only what has changed.
#
#   make demo     build all but the tests, write build/myrelu.onnx, run ./build/ort_infer on it
#   make test     build, install old ONNX Runtimes for the tests, run ctest, which runs pytest too:
#                 the first tier of the tests (docs/testing.md)
#   make test-all the same with all tests
#   make test-tensorflow   install TensorFlow, 274 MB, and an old one; run the tests that need it
#   make test-models   put 24 models of other packages, 82 MB, through accelerate, lower and ort_infer
#   make budget   compare the seconds of the last build and tests with tools/budget.json
#   make check    build, then check formatting, lint and types, and correct what can be corrected
#   make docs     the site of the documents, in build/site; its search needs a server
#   make tidy     clang-tidy
#   make asan     C++ tests, plugin and ort_infer under AddressSanitizer and UndefinedBehaviorSanitizer
#   make tsan     C++ tests with threads under ThreadSanitizer
#   make asan-torch   the PyTorch binding under AddressSanitizer and UndefinedBehaviorSanitizer
#   make fuzz     the readers of texts and files, and models, on random input for FUZZ_SECONDS (3600)
#   make fuzz-readers   the readers alone
#
#   CMAKE_FLAGS   additional CMake options, for example -DCUDARELU_CUDA=OFF

SHELL := bash
PYTHON ?= python3
VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
export PATH := $(BIN):$(PATH)
CMAKE_FLAGS ?=
# Without a GPU, the kernels are compiled to PTX alone, which takes two thirds of the time.
CONFIGURE = $(BIN)/cmake --preset default -DPython_EXECUTABLE=$(BIN)/python \
 -DCUDARELU_CUDA_ARCHITECTURES_WITHOUT_GPU=90-virtual
PROGRESS := bash tools/progress.sh
TIDY_FILES ?= $(shell git ls-files 'src/*.cpp')

ifneq ($(words $(CURDIR)),1)
$(error make does not work in a folder whose path contains a space: $(CURDIR))
endif

.PHONY: demo test test-all budget test-tensorflow test-models build packages kernels runtimes check docs tidy asan asan-torch tsan \
 fuzz fuzz-readers clean
.DEFAULT_GOAL := build

build: build/build.ninja
	@$(PROGRESS) $(BIN)/ninja -C build

# Configures again if the flags have changed.
ifneq ($(shell cat build/.cmake_flags 2>/dev/null),$(CMAKE_FLAGS))
.PHONY: build/build.ninja
endif

build/build.ninja: $(VENV)/.packages CMakeLists.txt CMakePresets.json $(wildcard cmake/*)
	@$(PROGRESS) $(CONFIGURE) $(foreach part,TORCH ORT TESTS CUDA_ARCHITECTURES,-UCUDARELU_$(part)) $(CMAKE_FLAGS)
	@echo '$(CMAKE_FLAGS)' >build/.cmake_flags
	@touch $@

$(VENV)/.tools: requirements.lock tools/cuda_compiler.lock tools/setup.sh
	$(PROGRESS) bash tools/setup.sh tools "$(PYTHON)" "$(VENV)"
	@touch $@

# Builds the kernels, which do not need PyTorch, while PyTorch is installed: that takes one
# processor a minute.
$(VENV)/.packages: $(VENV)/.tools
	@if [ -e build/build.ninja ]; then $(MAKE) --no-print-directory packages; \
	 else $(MAKE) --no-print-directory -j 2 packages kernels; fi
	@touch $@

packages:
	$(PROGRESS) bash tools/setup.sh packages "$(PYTHON)" "$(VENV)"

kernels:
	@$(PROGRESS) $(CONFIGURE) $(CMAKE_FLAGS) $(foreach part,TORCH ORT TESTS,-DCUDARELU_$(part)=OFF)
	@$(PROGRESS) $(BIN)/ninja -C build cudarelu_kernels

$(VENV)/.dev: $(VENV)/.packages requirements-dev.lock
	$(PROGRESS) bash tools/setup.sh dev "$(PYTHON)" "$(VENV)"
	@touch $@

demo: build/build.ninja
	@$(PROGRESS) $(BIN)/ninja -C build cudarelu
	@$(BIN)/python -m cudarelu export-demo build/myrelu.onnx
	@$(BIN)/python -c "import numpy; numpy.save('build/x.npy', numpy.array([[-1, 2, -3, 4], [0.5, -0.5, numpy.nan, -0.0]], 'float32'))"
	./build/ort_infer build/myrelu.onnx --input x=build/x.npy

runtimes: $(VENV)/.packages
	@$(PROGRESS) bash tools/old_runtimes.sh $(BIN)/python $(VENV)/ort

# What the tests need is installed during the build.
test: $(VENV)/.packages
	@$(MAKE) --no-print-directory -j 3 build $(VENV)/.dev runtimes
	@$(PROGRESS) $(BIN)/ctest --test-dir build --output-on-failure -j 2

test-all:
	@PYTEST_ADDOPTS="$(PYTEST_ADDOPTS) --slow=all" $(MAKE) --no-print-directory test

budget:
	@$(BIN)/python tools/budget.py compile build
	@$(BIN)/python tools/budget.py tests build

# TensorFlow is in folders of their own, since it brings its own NumPy, and old versions need old
# packages.
TENSORFLOW := $(VENV)/tensorflow

define install_alone
rm -rf $@.part
$(BIN)/python -m pip install -q --disable-pip-version-check --no-compile --target $@.part $(1)
mv $@.part $@
endef

$(TENSORFLOW): | $(VENV)/.dev
	$(call install_alone,tensorflow-cpu)

$(TENSORFLOW)-%: | $(VENV)/.dev
	$(call install_alone,tensorflow-cpu==$*)

test-tensorflow: $(VENV)/.dev build $(TENSORFLOW) $(TENSORFLOW)-2.16.2
	@PYTHONPATH=$(TENSORFLOW):$(CURDIR)/build/python CUDARELU_BUILD_DIR=$(CURDIR)/build \
	 $(PROGRESS) $(BIN)/python -m pytest -q -n 2 --dist loadgroup \
	 -k "test_tf or tensorflow" \
	 tests/python/tf tests/ops/test_ops.py tests/docs/test_docs.py

test-models: $(VENV)/.packages build
	@PYTHONPATH=$(CURDIR)/build/python CUDARELU_BUILD_DIR=$(CURDIR)/build \
	 $(BIN)/python tools/test_models.py build/models

check: $(VENV)/.dev build
	$(BIN)/pre-commit run --all-files --show-diff-on-failure

# The site needs neither a build nor the packages of one.
DOCS := $(CURDIR)/build/docs-venv

$(DOCS)/.packages: requirements-docs.lock
	@$(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r $<
	@touch $@

docs: $(DOCS)/.packages
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build -f docs/site/mkdocs.yml

tidy: $(VENV)/.dev build
	@mkdir -p build/tidy && $(BIN)/python tools/compile_commands.py build >build/tidy/compile_commands.json
	@printf '%s\n' $(TIDY_FILES) | xargs -r -P 2 -n 4 $(BIN)/clang-tidy -p build/tidy --quiet

# Runs the C++ tests; then, with the Python package of build/, the tests of the plugin and of
# ort_infer. Leaks are not detected, since Python, PyTorch and ONNX Runtime keep memory until the
# process ends. Tests of memory use are left out, since the sanitizers need much memory. libstdc++
# is preloaded so that the sanitizer intercepts its exceptions.
asan: $(VENV)/.dev build
	@$(PROGRESS) $(BIN)/cmake --preset asan -DPython_EXECUTABLE=$(BIN)/python
	@$(PROGRESS) $(BIN)/ninja -C build-asan
	@$(PROGRESS) $(BIN)/ctest --test-dir build-asan --output-on-failure -j 2 -E "^(symbols|include_rule)$$"
	@rm -rf build-asan/python/cudarelu/pytorch_*
	@ln -sfn $(CURDIR)/build/python/cudarelu/{_build_info.py,pytorch_*} build-asan/python/cudarelu
	@LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	 ASAN_OPTIONS=detect_leaks=0 \
	 PYTHONPATH=$(CURDIR)/build-asan/python CUDARELU_BUILD_DIR=$(CURDIR)/build-asan \
	 $(PROGRESS) $(BIN)/python -m pytest -q -n 2 -k "not memory" tests/ort_plugin/test_ort_plugin_*.py tests/cli_app

# The reader of PyTorch and the ops, in a process of PyTorch, which is not instrumented itself. The
# build is that of asan, which links the other reader into its package.
ASAN_OPS := relu or softmax or layer_norm or linear_gelu or knn_query or attention
asan-torch: $(VENV)/.dev
	@rm -rf build-asan/python/cudarelu/{_build_info.py,pytorch_*}
	@$(PROGRESS) $(BIN)/cmake --preset asan-torch -DPython_EXECUTABLE=$(BIN)/python
	@$(PROGRESS) $(BIN)/ninja -C build-asan cudarelu_ops cudarelu_python cudarelu_module my_ops
	@LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	 ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	 PYTHONPATH=$(CURDIR)/build-asan/python CUDARELU_BUILD_DIR=$(CURDIR)/build-asan \
	 $(PROGRESS) $(BIN)/python -m pytest -q -n 2 --dist loadgroup tests/torch_binding \
	 tests/ops/test_ops.py -k "test_torch or test_arrays or \
	 ((torch-cpu or numpy) and float32 and not compile and ($(ASAN_OPS)))"

# Threads that are not those of the library, as ONNX Runtime's and OpenMP's, are not instrumented, so
# only the C++ tests run.
tsan: $(VENV)/.packages
	@$(PROGRESS) $(BIN)/cmake --preset tsan -DPython_EXECUTABLE=$(BIN)/python
	@$(PROGRESS) $(BIN)/ninja -C build-tsan cudarelu_tests
	@OMP_NUM_THREADS=4 $(PROGRESS) build-tsan/cudarelu_tests \
	 --gtest_filter='Threads.*:ParallelFor.*:PlainGemm.*:HostCall.*'

# Needs Clang.
FUZZ_SECONDS := 3600
fuzz-readers: build/build.ninja
	@$(PROGRESS) $(BIN)/cmake --preset fuzz -DPython_EXECUTABLE=$(BIN)/python
	@$(PROGRESS) $(BIN)/cmake --build --preset fuzz
	bash tools/fuzz.sh build-fuzz $$(($(FUZZ_SECONDS) * 3 / 4))

fuzz: $(VENV)/.dev build fuzz-readers
	PYTHONPATH=$(CURDIR)/build/python CUDARELU_BUILD_DIR=$(CURDIR)/build \
	 CUDARELU_FUZZ_SECONDS=$$(($(FUZZ_SECONDS) / 8)) \
	 $(BIN)/python -m pytest -q -s -k further tests/python/onnx/test_onnx_random.py \
	 tests/python/defining/test_random_definitions.py

clean:
	rm -rf build build-asan build-tsan build-fuzz
