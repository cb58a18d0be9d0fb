# make demo and make test set up all that they need: a Python environment in .venv, the CUDA compiler
# where none is installed, and the build in build/. A second run does only what has changed.
#
#   make demo     build, write build/myrelu.onnx, run ./build/ort_infer on it
#   make test     build, then ctest, which runs pytest too, with old ONNX Runtimes that it installs
#   make check    formatting, lint and types, of what is built; mends what it can
#   make tidy     clang-tidy
#   make asan     the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
#
#   CMAKE_FLAGS   more options for the configuration, for example -DCUDARELU_CUDA=OFF

PYTHON ?= python3
VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
export PATH := $(BIN):$(PATH)
CMAKE_FLAGS ?=
TIDY_FILES = $(shell git ls-files 'src/kernels/*.cpp' 'src/ort_plugin/*.cpp' 'src/cli_app/*.cpp')

ifneq ($(words $(CURDIR)),1)
$(error make cannot work in a folder whose path has a space: $(CURDIR))
endif

.PHONY: demo test build check tidy asan clean
.DEFAULT_GOAL := build

build: build/build.ninja
	@$(BIN)/ninja -C build

# Configures again where the flags are others than before.
ifneq ($(shell cat build/.cmake_flags 2>/dev/null),$(CMAKE_FLAGS))
.PHONY: build/build.ninja
endif

build/build.ninja: $(VENV)/.done CMakeLists.txt CMakePresets.json $(wildcard cmake/*)
	$(BIN)/cmake --preset default -DPython_EXECUTABLE=$(BIN)/python $(CMAKE_FLAGS)
	@echo '$(CMAKE_FLAGS)' >build/.cmake_flags
	@touch $@

$(VENV)/.done: requirements.txt tools/setup.sh
	bash tools/setup.sh "$(PYTHON)" "$(VENV)"
	@touch $@

demo: build
	@$(BIN)/python -m cudarelu export-demo build/myrelu.onnx
	@$(BIN)/python -c "import numpy; numpy.save('build/x.npy', numpy.array([[-1, 2, -3, 4], [0.5, -0.5, numpy.nan, -0.0]], 'float32'))"
	./build/ort_infer build/myrelu.onnx --input x=build/x.npy

test: build
	@bash tools/old_runtimes.sh $(BIN)/python $(VENV)/ort
	@$(BIN)/ctest --test-dir build --output-on-failure -j 2

check: build
	$(BIN)/pre-commit run --all-files --show-diff-on-failure

tidy: build
	@printf '%s\n' $(TIDY_FILES) | xargs -P 2 -n 4 $(BIN)/clang-tidy -p build --quiet

asan: $(VENV)/.done
	$(BIN)/cmake --preset asan
	$(BIN)/ninja -C build-asan
	$(BIN)/ctest --test-dir build-asan --output-on-failure -j 2

clean:
	rm -rf build build-asan
