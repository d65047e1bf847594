# The front door. `make help` lists what there is; every target may be repeated and does only what is missing.
MODEL ?= models/SmolLM2-135M-Instruct.Q4_1.gguf
PROMPT ?= In three short sentences: what is a language model, and what can you help me with?
# What computes in `make run`: auto looks for a GPU; cuda and cpu are taken at their word.
BACKEND ?= auto
RUN_BACKEND = $(if $(filter-out auto,$(BACKEND)),--backend $(BACKEND))
DEFAULT_MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf
BINARY := build/release/sparkinfer
PYTHON := .venv/bin/python
ORACLE_PYTHON ?= python3
# Of `make install`: where it will be found, and a folder to write below instead of /.
PREFIX ?= /usr/local
DESTDIR ?=
# More options of `make serve` and `make chat`.
SERVE ?=
CHAT ?=
# What Ctrl-C stops in a chat is the answer alone: at a terminal the program is a job of its own, apart from make.
OWN_KEYS = if [ -t 0 ]; then set -m; fi;
# Of `make fuzz`: hours by the clock, divided among the targets, and which (all).
HOURS ?= 1
TARGETS ?=
# The prompt reaches the shell as an environment variable, so that quotes and dollars in it stay what they are.
export PROMPT_TEXT := $(value PROMPT)
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

.DEFAULT_GOAL := help
.PHONY: help setup build cuda run run-cpu run-cuda chat chat-cpu chat-cuda serve serve-cpu serve-cuda configure-cuda test test-gpu check fuzz proof lint fmt docs goldens explain bench clean model installable install packages
.NOTPARALLEL:

help:  ## this list
	@echo "sparkinfer: make <target>"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## install what is missing: Debian packages, the Python environment .venv; check cargo
	@tools/setup.sh run

build/%/build.ninja: CMakePresets.json
	@cmake --preset $* >&2
	@touch $@

build: setup build/release/build.ninja  ## the release binary, build/release/sparkinfer
	@cmake --build --preset release --target sparkinfer >&2

configure-cuda: setup
	@nvcc=$$(tools/setup_cuda.sh) && cmake --preset cuda -DCMAKE_CUDA_COMPILER="$$nvcc" >&2

cuda: configure-cuda  ## the same with the CUDA backend, build/cuda/sparkinfer; obtains a CUDA compiler where there is none
	@cmake --build --preset cuda --target sparkinfer >&2

model: setup
	@[ "$(MODEL)" != "$(DEFAULT_MODEL)" ] || $(PYTHON) tools/fetch_model.py

run: setup  ## answer a prompt, on the GPU where one can be used: make run PROMPT="…" MODEL=path BACKEND=cpu
	@kind=$$(python3 tools/find_gpu.py "$(BACKEND)") && $(MAKE) --no-print-directory run-$$kind

run-cpu: build model
	@build/release/sparkinfer run "$(MODEL)" -p "$$PROMPT_TEXT" $(RUN_BACKEND)

run-cuda: cuda model
	@build/cuda/sparkinfer run "$(MODEL)" -p "$$PROMPT_TEXT" $(RUN_BACKEND)

chat: setup  ## talk with MODEL in this terminal: make chat MODEL=path BACKEND=cpu CHAT="--ctx 4096"
	@kind=$$(python3 tools/find_gpu.py "$(BACKEND)") && $(MAKE) --no-print-directory chat-$$kind

chat-cpu: build model
	@$(OWN_KEYS) build/release/sparkinfer chat "$(MODEL)" $(RUN_BACKEND) $(CHAT); exit $$?

chat-cuda: cuda model
	@$(OWN_KEYS) build/cuda/sparkinfer chat "$(MODEL)" $(RUN_BACKEND) $(CHAT); exit $$?

serve: setup  ## serve MODEL over HTTP on 127.0.0.1:8080: make serve MODEL=path BACKEND=cpu SERVE="--port 8000"
	@kind=$$(python3 tools/find_gpu.py "$(BACKEND)") && $(MAKE) --no-print-directory serve-$$kind

serve-cpu: build model
	@exec build/release/sparkinfer serve "$(MODEL)" $(RUN_BACKEND) $(SERVE)

serve-cuda: cuda model
	@exec build/cuda/sparkinfer serve "$(MODEL)" $(RUN_BACKEND) $(SERVE)

test:  ## set up, build, and run every test (25 minutes from cold on 2 cores, at most)
	@tools/setup.sh test
	@python3 tools/ci.py test

test-gpu: model  ## every test of the GPU: builds build/cuda/gpu_test and runs it, or says that no GPU is here and fails
	@tools/setup.sh test
	@$(MAKE) --no-print-directory configure-cuda
	@cmake --build --preset cuda --target gpu_test >&2
	@python3 tools/find_gpu.py needed
	@$(PYTHON) tools/test_gpu.py

check:  ## all that .ci/run wants: format, include rule, tests, sanitizers, clang-tidy on recent changes
	@tools/setup.sh check
	@python3 tools/ci.py check

fuzz:  ## the fuzz targets of tests/fuzz, so long in all: make fuzz HOURS=8 TARGETS="gguf json"
	@tools/setup.sh check
	@cmake --preset fuzz >&2
	@cmake --build --preset fuzz --target fuzz_targets >&2
	@python3 tools/fuzz.py --hours "$(HOURS)" $(TARGETS)

proof: setup model  ## real clients, proxies, attacks and loads against the server, packages in clean roots, written to docs/proof.md: make proof ONLY="codex soak"
	@tools/setup.sh check
	@command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || { echo "make proof needs nginx: apt-get install nginx-light" >&2; exit 2; }
	@$(MAKE) --no-print-directory build/release/build.ninja
	@cmake --build --preset release --target installable scripted_serve serve_cases_test engine_test >&2
	@$(PYTHON) tools/proof/proof.py $(ONLY:%=--only %)

installable: build
	@cmake --build --preset release --target installable >&2

# Under sudo nothing is built: the compiler's and cargo's files stay those of the user.
install:  ## the program, its man page, completions, library and header: make install PREFIX=/usr/local DESTDIR=
	@[ -n "$$SUDO_USER" ] || $(MAKE) --no-print-directory installable
	@[ -e build/release/generated/THIRD-PARTY-NOTICES ] || { echo "there is nothing to install yet; first, without sudo: make installable" >&2; exit 2; }
	@DESTDIR="$(DESTDIR)" cmake --install build/release --prefix "$(PREFIX)" --strip >&2

packages: installable  ## a .deb, a tarball that runs from any folder, a wheel, and their sums, in build/packages
	@rm -rf build/packages
	@python3 packaging/packages.py build/release build/packages

lint:  ## clang-tidy on the whole tree
	@tools/setup.sh check
	@$(MAKE) --no-print-directory build/release/build.ninja
	@python3 tools/ci_tidy.py --all

fmt:  ## format all C++ and Rust
	@tools/setup.sh check
	@clang-format-19 -i $$(python3 tools/ci_files.py cpp)
	@for m in rust/*/Cargo.toml; do if command -v rustfmt >/dev/null; then cargo fmt --manifest-path $$m; fi; done

docs: build  ## make docs/cli.md and docs/sparkinfer.1 again, from the table that --help prints
	@$(BINARY) manual markdown > docs/cli.md.new && mv docs/cli.md.new docs/cli.md
	@$(BINARY) manual man > docs/sparkinfer.1.new && mv docs/sparkinfer.1.new docs/sparkinfer.1

goldens: model  ## make tests/golden again: ORACLE_PYTHON=… LLAMA_CPP=source tree LLAMA_BIN=its programs
	@[ -d "$(LLAMA_CPP)" ] && [ -d "$(LLAMA_BIN)" ] || { echo "make goldens needs a Python with tools/requirements-goldens.txt" \
		"(ORACLE_PYTHON), the llama.cpp tree of the llama-cpp-python sdist (LLAMA_CPP) and its built programs (LLAMA_BIN)" >&2; exit 2; }
	$(ORACLE_PYTHON) tools/goldens_quant.py tests/data/quant
	$(ORACLE_PYTHON) tools/goldens_models.py --llama-cpp "$(LLAMA_CPP)" --llama-bin "$(LLAMA_BIN)"
	$(ORACLE_PYTHON) tools/goldens_quantize.py "$(LLAMA_BIN)/llama-quantize"
	$(ORACLE_PYTHON) tools/goldens_smollm2.py $(DEFAULT_MODEL) --llama-bin "$(LLAMA_BIN)"

explain: build model  ## the tape of MODEL as a table: ops, shapes, bytes, floor
	@$(BINARY) explain "$(MODEL)"

bench: build model  ## tokens per second of MODEL, with % of the memory-bandwidth floor
	@$(BINARY) bench "$(MODEL)" -p 512 -n 64 -r 3

clean:  ## remove what was built (not .venv, .venv-cuda, models)
	rm -rf build rust/*/target
