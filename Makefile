# make setup | serve | test | lint | bench | test-metal

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := serve

PYTHON ?= python3
CONFIG ?= configs/app.yaml
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.pomona-setup

# Which MLX goes in: Metal's is in the plain wheel on macOS.
ifeq ($(shell uname -s),Darwin)
EXTRAS := test
else ifneq ($(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null),)
EXTRAS := cuda13,test
else
EXTRAS := cpu,test
endif

BUILD_INPUTS := pyproject.toml $(wildcard CMakeLists.txt) \
	$(shell find backend_metal/csrc backend_metal/shaders -type f 2>/dev/null)

.PHONY: setup serve test lint bench test-metal

setup: $(STAMP)

$(STAMP): $(BUILD_INPUTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or later is needed; set PYTHON=python3.11" >&2; exit 1; }
	@echo "Installing into $(VENV), a minute or two the first time."
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --progress-bar on --editable '.[$(EXTRAS)]'
	@touch $@

serve: setup
	@exec $(BIN)/python -m deployments.launch $(CONFIG)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest

bench: setup
	$(BIN)/python -m ops.bench.engine

test-metal:
ifeq ($(shell uname -s),Darwin)
	$(MAKE) setup
	$(BIN)/python -m pytest tests/backend_metal
else
	@echo "test-metal needs a Mac with Apple silicon; this is $$(uname -s) $$(uname -m)." >&2
	@exit 1
endif
