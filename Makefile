# make setup [EXTRAS=ops] | serve [CONFIG=configs/qwen3.yaml] [MODEL=id-or-folder] [VERBOSE=1]
#      test, or a part of it: lint | test-unit | test-engine | test-serve
#      native [POMONA_CUDA=ON] | test-asan | test-ubsan | constraints
#      bench | bench-attention | bench-engine | bench-serve [BENCH_SERVE="--concurrency 8"]
#      bench-compare [BENCH_COMPARE="--rounds 1"]
#      fuzz [COUNT=1000000] [SEED=1] [START=0]
#      test-schemas [COUNT=1000] [START=0] [SCHEMAS=folder]
#      test-clients, with Chromium
#      test-cluster [SCENARIOS=ci], as root on Linux
#      on a Mac: test-metal | bench-metal
#      Metal's kernels without a Mac: metal-tools | test-metal-ladder | test-metal-RUNG | test-rungs RUNGS="types cuda"
#      every instantiation of Metal's and CUDA's: test-exhaustive

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := serve

CONFIG ?= configs/app.yaml
VENV := .venv
BIN := $(VENV)/bin
INSTALLS := pyproject.toml ops/constraints.txt ops/setup.sh

.PHONY: setup serve test test-clients fuzz lint bench bench-attention bench-engine bench-serve bench-compare native test-asan test-ubsan \
	test-metal bench-metal metal-tools test-metal-ladder

# Prerequisites are brought up to date in their order.
.NOTPARALLEL:

# Each process of a server or of a test would compile again whatever it imports.
unexport PYTHONDONTWRITEBYTECODE

# EXTRAS=ops adds what a cluster's hosts need beside the server; several are separated by commas.
setup: $(VENV)/.installed-$(or $(EXTRAS),serving) native

# What the suite and its linters need.
.PHONY: setup-dev
setup-dev: $(VENV)/.installed-dev native

comma := ,
$(VENV)/.installed-%: $(INSTALLS)
	@PYTHON='$(PYTHON)' ops/setup.sh $(filter-out serving,$(subst $(comma), ,$*))
	@touch $@

# The versions that every host installs, on both systems, after a change of pyproject.toml.
.PHONY: constraints
constraints: setup
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --no-header --no-annotate \
		--upgrade pyproject.toml --output-file ops/constraints.txt

# Compiles what has changed of the extension. POMONA_CUDA=ON|OFF|AUTO: with what runs on NVIDIA GPUs.
BUILD := build/native
export NINJA_STATUS := [%f/%t, %e s]$(subst ,, )

$(BIN)/ninja:
	@PYTHON='$(PYTHON)' ops/setup.sh

native: | $(BIN)/ninja
	@mkdir -p $(BUILD)
	@[ -f $(BUILD)/build.ninja ] || echo "Compiling the extension, a minute the first time."
	@$(BIN)/cmake -S . -B $(BUILD) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
		-DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
		$(if $(POMONA_CUDA),-DPOMONA_CUDA=$(POMONA_CUDA)) >$(BUILD)/configure.log || { cat $(BUILD)/configure.log; exit 1; }
	@$(BIN)/ninja -C $(BUILD) install | grep --line-buffered -v '^-- '

serve: setup
	@exec $(BIN)/pomona serve $(if $(MODEL),'$(MODEL)') --config '$(CONFIG)' \
		$(if $(VERBOSE),--verbose)

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Three, since the end-to-end tests mostly wait; each file stays with one, for its fixtures.
WORKERS := -n 3 --dist loadfile --no-loadscope-reorder

test: lint
	$(BIN)/python -m pytest $(WORKERS)

# Its three parts: without Ray and MLX; the engine; what needs Ray, a browser or a server.
.PHONY: test-unit test-engine test-serve
test-unit test-engine test-serve: test-%: setup-dev
	$(BIN)/python -m pytest $(WORKERS) --kind $*

# Mutated requests against a gateway and its replica; `make test` has the first 1,000. START= goes on
# where one ended.
fuzz: setup-dev
	$(BIN)/python -m tests.support.deployments.fuzz --count $(or $(COUNT),1000000) \
		--seed $(or $(SEED),1) --start $(or $(START),0)

# Answers held to JSON schemas, each preempted and resumed elsewhere; `make test` has the first 24.
# SCHEMAS= takes those of MaskBench instead of made-up ones.
.PHONY: test-schemas
test-schemas: setup-dev
	$(BIN)/python -m tests.support.backend_metal.schema_outputs $(SCHEMAS) \
		--count $(or $(COUNT),1000) --start $(or $(START),0)

# Agents and libraries of other people, installed into .clients: about 11 GB from PyPI and npm.
test-clients: $(VENV)/.installed-dev,clients native
	$(BIN)/python -m tests.clients.install
	$(BIN)/python -m pytest -m "clients or not clients" tests/clients

bench: setup-dev
	$(BIN)/python -m ops.bench

bench-attention: setup-dev
	$(BIN)/python -m ops.bench.attention

bench-engine: setup-dev
	$(BIN)/python -m ops.bench.engine
	$(BIN)/python -m ops.bench.engine.groups

# Of the server that `make serve` has started, unless BENCH_SERVE has a --url.
bench-serve: setup-dev
	$(BIN)/python -m ops.bench.serve $(BENCH_SERVE)

bench-compare: setup-dev
	$(BIN)/python -m ops.bench.compare $(BENCH_COMPARE)

# The suite of the backend with the GPU as MLX's device, and so with Metal's attention.
test-metal: mac
	$(BIN)/python -m pytest tests/backend_metal

# BENCH_METAL=--quick for a slow or shared machine; the report is bench-metal.md.
bench-metal: mac
	$(BIN)/python -m ops.bench.metal $(BENCH_METAL)

.PHONY: mac
mac:
ifeq ($(shell uname -s)-$(shell uname -m),Darwin-arm64)
	$(MAKE) setup-dev
else
	@echo "This needs a Mac with Apple silicon; it is $$(uname -s) $$(uname -m)." >&2
	@exit 1
endif

# The ladder: Metal's kernels and their dispatch, proved without a Mac. A rung is everything about one
# way to prove them. `make test` runs none of it; CI runs the rungs that a change can touch.
RUNGS := types emulator operators races host oracle self-check
RUNG_types := instantiations*
RUNG_emulator := smoke* emulator_errors* emulator_library* injected*
RUNG_operators := operators* *_kernel* amplification* host* engine* draw* recurrent* rotate_heads*
RUNG_races := barriers* emulator_races*
RUNG_host := cross_build*
RUNG_oracle := air_oracle*
RUNG_self-check := self_check*

.PHONY: $(RUNGS:%=test-metal-%)
$(RUNGS:%=test-metal-%): test-metal-%: setup-dev
	$(BIN)/python -m pytest $(WORKERS) -m ladder \
		$(or $(wildcard $(RUNG_$*:%=tests/metal_on_cpu/test_%.py)),$(error no tests for $@))

test-metal-ladder: setup-dev
	$(BIN)/python -m pytest $(WORKERS) -m ladder tests/metal_on_cpu

# RUNGS="types cuda": those that `python -m tests.support.changed` prints.
.PHONY: test-rungs
test-rungs: setup-dev $(if $(filter cuda,$(RUNGS)),$(VENV)/.installed-dev$(comma)cuda-build)
	$(BIN)/python -m pytest $(WORKERS) -m ladder \
		$(sort $(wildcard $(foreach rung,$(RUNGS),$(RUNG_$(rung):%=tests/metal_on_cpu/test_%.py)))) \
		$(if $(filter cuda,$(RUNGS)),tests/cuda/on_cpu)

# All of this, with every instantiation of the kernels and more random examples: hours.
.PHONY: test-exhaustive
test-exhaustive: setup-dev
	POMONA_EXHAUSTIVE=1 $(BIN)/python -m pytest $(WORKERS) -m "not cluster and not clients"

# Clusters that lose some of their hosts, as root on Linux; SCENARIOS=ci has those of .ci/run.
.PHONY: test-cluster
test-cluster: setup-dev
	$(BIN)/python -m pytest -m "cluster$(SCENARIOS:%= and %)" tests/cluster tests/e2e/test_cluster_commands.py

# Clang and a cross compiler for macOS, which the ladder runs on.
metal-tools: $(VENV)/.installed-dev,metal-tools native
	tests/metal_on_cpu/install_tools.sh

# The native tests on an extension built beside the installed one, under a sanitizer.
NATIVE_TESTS := $(wildcard tests/backend_metal/test_native_*.py) \
	$(addprefix tests/backend_metal/test_,kv_cache.py activations.py add_rms_norm.py draw_kernel.py float_rows.py)

test-asan: SANITIZER := address
test-asan: RUNTIME := libasan.so
test-ubsan: SANITIZER := undefined
test-ubsan: RUNTIME := libubsan.so
test-asan test-ubsan: $(VENV)/.installed-dev
	$(BIN)/cmake -S . -B build/$(SANITIZER) -G Ninja -DPOMONA_SANITIZE=$(SANITIZER) \
		-DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
		-DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python >/dev/null
	$(BIN)/cmake --build build/$(SANITIZER) --target _native
	@# Python frees little at exit, and its own allocator would hide what is freed too early.
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
	POMONA_BLAS=off POMONA_NATIVE_BUILD=build/$(SANITIZER) PYTHONPATH=. \
	LD_PRELOAD="$$($(CXX) -print-file-name=$(RUNTIME)) $$($(CXX) -print-file-name=libstdc++.so)" \
		$(BIN)/python -m pytest -p tests.support.sanitized_native $(NATIVE_TESTS)
