# `make run` and `make test` need Python 3.11 or newer and make; everything else they set up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
AGAINST ?=
SIZES ?=
BENCH ?=
KILLS ?= 200

.PHONY: help run test unit check bench bench-cluster soak setup clean

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 15

setup: $(VENV)/.ready  ## .venv with fluence and its tools

$(VENV)/.ready: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fluence needs Python 3.11 or newer: make PYTHON=python3.12")'
	@echo "setting up $(VENV) …"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

run: setup  ## a cluster, the scheduler, and example pods that land; the first run builds Kubernetes (about 10 minutes)
	@$(BIN)/fluence demo

test: check  ## the checks, then every test; the first run builds Kubernetes (about 10 minutes on 2 cores)
	@$(BIN)/fluence sandbox build > /dev/null
	@$(BIN)/pytest -n auto

unit: check  ## the checks and the tests that need no Kubernetes, with fewer examples: under two minutes
	@FLUENCE_HYPOTHESIS=quick $(BIN)/pytest -n auto tests/unit tests/property tests/conformance

check: setup  ## ruff, mypy --strict, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo

bench: setup  ## speed and memory; AGAINST=/path/to/resource-query adds Fluxion; SIZES=100,1000 BENCH=--help
	@$(BIN)/python benchmarks/run.py $(if $(AGAINST),--against '$(AGAINST)') $(if $(SIZES),--sizes $(SIZES)) $(BENCH)
	@$(BIN)/python benchmarks/plan.py
	@$(BIN)/python benchmarks/startup.py
	@$(BIN)/python benchmarks/kube.py

bench-cluster: setup  ## pods bound per second on 1,000 simulated nodes, beside kube-scheduler; BENCH=--help
	@$(BIN)/python benchmarks/schedulers.py $(BENCH)

soak: setup  ## kill the scheduler 200 times: plainly, with faults, and while volumes are made; KILLS=20 for less
	@FLUENCE_SOAK=$(KILLS) $(BIN)/pytest --timeout 0 tests/integration/schedule/test_kills.py

clean:  ## remove what make made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
