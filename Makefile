# `make run` and `make test` need Python 3.11 or newer and make; everything else they set up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
AGAINST ?=
SIZES ?=
BENCH ?=
KILLS ?= 200
MINUTES ?= 30
EXPLORE ?=
COVERAGE ?=
IMAGE ?=
REAL ?=
SESSIONS ?= 1000
COMPARE ?=
E2E ?=
# Programs start sooner when modules are compiled once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test unit coverage explore check e2e compare bench bench-cluster soak docs image image-lock manifests stubs setup clean

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 15

setup: $(VENV)/.ready  ## .venv with fluence and its tools

$(VENV)/.ready: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fluence needs Python 3.11 or newer: make PYTHON=python3.12")'
	@echo "setting up $(VENV) …"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

run: setup  ## a cluster, the scheduler, and example pods that land; REAL=1, as root: containers run, and print
	@$(BIN)/fluence demo $(if $(REAL),--real)

test: check  ## the checks, then every test; the first run builds Kubernetes (10 to 15 minutes on 2 cores)
	@$(BIN)/fluence sandbox build $(if $(filter 0,$(shell id -u)),--real-nodes) > /dev/null
	@$(BIN)/python -m deploy.helm.program > /dev/null
	@$(BIN)/python -m tests.operators.programs > /dev/null
	@PYTHONHASHSEED=0 $(BIN)/pytest -n auto
	@$(BIN)/python -m tests.coverage
	@$(BIN)/python benchmarks/guard.py

coverage: setup  ## which branches of the pure rooms their tests reach; build/coverage.json; COVERAGE=--write for docs/coverage.md
	@$(BIN)/python -m tests.coverage $(COVERAGE)

unit: check  ## the checks and the tests that need no Kubernetes, with fewer examples: three to four minutes
	@PYTHONHASHSEED=0 FLUENCE_HYPOTHESIS=quick $(BIN)/pytest -n auto tests/unit tests/property tests/conformance

explore: setup  ## look for counterexamples: all properties with fresh seeds; report in build/explore.json; MINUTES=30
	@$(BIN)/python -m tests.explore --minutes $(MINUTES) $(EXPLORE)

check: setup  ## ruff, mypy (the code strictly, the tests a little less), import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo

compare: setup  ## random sessions in `fluence resource-query` and in a real Fluxion: AGAINST=/path/to/resource-query SESSIONS=1000
	@test -n '$(AGAINST)' || { echo "make compare needs a real Fluxion: make compare AGAINST=/path/to/resource-query"; exit 2; }
	@PYTHONHASHSEED=0 $(BIN)/python -m tests.conformance.compare --against '$(AGAINST)' --sessions $(SESSIONS) $(COMPARE)

e2e: setup  ## Kubernetes' own tests of scheduling, with Fluence as default-scheduler; the first run compiles them (10 minutes); E2E=--help
	@$(BIN)/python -m tests.e2e $(E2E)

bench: setup  ## speed and memory; AGAINST=/path/to/resource-query adds Fluxion; SIZES=100,1000 BENCH=--help
	@$(BIN)/python benchmarks/run.py $(if $(AGAINST),--against '$(AGAINST)') $(if $(SIZES),--sizes $(SIZES)) $(BENCH)
	@$(BIN)/python benchmarks/service.py $(if $(AGAINST),--against '$(AGAINST)') $(if $(SIZES),--nodes $(SIZES))
	@$(BIN)/python benchmarks/plan.py
	@$(BIN)/python benchmarks/events.py
	@$(BIN)/python benchmarks/devices.py
	@$(BIN)/python benchmarks/startup.py
	@$(BIN)/python benchmarks/kube.py

bench-cluster: setup  ## pods bound per second on 1,000 simulated nodes, beside kube-scheduler; BENCH=--help
	@$(BIN)/python benchmarks/schedulers.py $(BENCH)

soak: export FLUENCE_HYPOTHESIS = explore
soak: setup  ## the long forms: kill the scheduler 200 times, plainly and with faults; stop, kill and cut off two replicas 200 times; 10,000 faults inside it; 100,000 gangs; 10,000 histories of promises; 10,000 gangs over devices; 1,000 edits of their document; 10,000 queues on one control plane; 10,000 worlds of several tenants and 200 crashes in a preemption; 10,000 hostile tenants; 10,000 calls, 1,000 clients and 100 kills of the match service, and all recorded graphs behind two programs at once; KILLS=20 for less
	@FLUENCE_SOAK=$(KILLS) $(BIN)/pytest --timeout 0 tests/integration/schedule/test_kills.py tests/integration/schedule/test_mixed_kills.py tests/integration/controller/test_door_kills.py tests/integration/live/test_leaders.py tests/integration/adversary
	@FLUENCE_FAULTS=10000 $(BIN)/pytest --timeout 0 tests/property/test_fault_machine.py
	@FLUENCE_GANGS=100000 $(BIN)/pytest --timeout 0 tests/unit/schedule/test_memory.py
	@FLUENCE_HISTORIES=10000 $(BIN)/pytest --timeout 0 -n auto tests/property/test_promises_hold.py
	@FLUENCE_SIMULATIONS=500 $(BIN)/pytest --timeout 0 -n auto tests/property/test_simulated_promises.py
	@FLUENCE_ADMISSIONS=10000 $(BIN)/pytest --timeout 0 tests/integration/admission/test_agree.py tests/integration/schedule/test_held_operators.py -k python_rules
	@FLUENCE_DEVICE_GANGS=10000 FLUENCE_DEVICES=2000 $(BIN)/pytest --timeout 0 -n auto tests/property/test_device_scale.py tests/property/test_device_machine.py
	@FLUENCE_TWINS=10000 $(BIN)/pytest --timeout 0 tests/property/test_hostile_twin.py
	@FLUENCE_SERVICE_CALLS=10000 FLUENCE_SERVICE_CLIENTS=1000 FLUENCE_SERVICE_KILLS=100 $(BIN)/pytest --timeout 0 -n auto tests/unit/service
	@FLUENCE_COMPARED=330 $(BIN)/pytest --timeout 0 -n auto tests/conformance/test_engine_compare.py
	@FLUENCE_EDITS=1000 $(BIN)/pytest --timeout 0 tests/integration/schedule/test_devices.py -k edits
	@FLUENCE_QUEUES=10000 $(BIN)/pytest --timeout 0 tests/integration/schedule/test_queues.py -k many_queues
	@FLUENCE_TENANTS=10000 FLUENCE_PREEMPTION_CRASHES=200 $(BIN)/pytest --timeout 0 -n auto tests/property/test_tenancy_worlds.py

docs: setup  ## build/docs/html: the manual as a site
	@$(BIN)/python -m docs.site

image: setup  ## dist/image: an OCI archive with every program, and its SBOM; no Docker needed; IMAGE=--help
	@$(BIN)/python -m deploy.image $(IMAGE)

image-lock: setup  ## record the newest Debian packages and the wheels of constraints.txt for the image
	@$(BIN)/python -m deploy.image --lock

stubs: setup  ## write what protoc makes of the kubelet's API and of the match service's
	@$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src src/fluence/deviceplugin/v1beta1.proto src/fluence/service/*.proto

manifests: setup  ## write what follows from the chart: its README and schema, deploy/fluence.yaml, deploy/scheduler
	@$(BIN)/python -m deploy.helm

clean:  ## remove what make made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
