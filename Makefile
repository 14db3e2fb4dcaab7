# Two commands matter: `make up` runs a mesh on this machine, `make test` passes every test.
# Both set up what they need below .venv, .venv-vllm and .tools; a second run finds it all there.

PYTHON ?= python3
ENGINE ?= simulated
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip -qq --disable-pip-version-check
COVERAGE := --cov --cov-branch --cov-report=term:skip-covered
export PYTHON
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help up test check conformance bench bench-balance bench-model bench-plan bench-xds format lint lock clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{ sub(/:.*/, "", $$1); printf "  make %-14s %s\n", $$1, $$2 }'

$(VENV)/.ready: .ci/locks/mesh.txt pyproject.toml
	@echo "==> setting up $(VENV) from .ci/locks/mesh.txt"
	@.ci/make-venv $(VENV)
	@# --no-deps: the lock names everything, and pip before 23.3 asks for the newest where a requirement has an extra.
	@$(PIP) install --require-hashes --no-deps -r .ci/locks/mesh.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@$(BIN)/pip check >/dev/null || { $(BIN)/pip check; exit 1; }
	@touch $@

up: $(VENV)/.ready ## run a mesh here (ENGINE=vllm for real engines, ARGS= for options of `wattmesh up`)
ifeq ($(ENGINE),vllm)
	@.ci/install-vllm
	@WATTMESH_VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python wattmesh up --engine vllm $(ARGS)
else
	@wattmesh up --engine $(ENGINE) $(ARGS)
endif

test: $(VENV)/.ready ## set up everything and run every check and test (ARGS= for pytest)
	@.ci/prepare-tests
	@$(MAKE) --no-print-directory lint
	@pytest $(COVERAGE) $(ARGS)

check: lint ## format check, lint, types, and the tests that need no vLLM
	@pytest $(COVERAGE) tests --ignore=tests/e2e $(ARGS)

conformance: $(VENV)/.ready ## print what came of every line of the xDS and Consul lists (ARGS="--conformance-json FILE")
	@.ci/install-consul || true
	@pytest -q -m conformance --conformance-table $(ARGS) tests

$(VENV)/.bench: .ci/locks/bench.txt $(VENV)/.ready
	@echo "==> adding what draws pictures to $(VENV)"
	@$(PIP) install --require-hashes --no-deps -r .ci/locks/bench.txt
	@touch $@

bench: bench-plan bench-xds bench-balance ## run every benchmark

bench-balance: $(VENV)/.bench ## compare balancers over unequal engines behind real Envoys (ARGS="--seconds 30 --rounds 3")
	@.ci/install-haproxy || true
	@python -m tests.load.bench_balance $(ARGS)

bench-model: $(VENV)/.ready ## the same fleet as a queueing model: balancers that are not built, too
	@python -m tests.load.bench_model $(ARGS)

bench-xds: $(VENV)/.ready ## a thousand xDS streams: changes, a reconnect storm, churn (ARGS="--churn 120")
	@python -m tests.load.bench_xds $(ARGS)

bench-plan: $(VENV)/.ready ## plan 10,000 engines: all of them, and one that changed
	@python -m tests.load.bench_plan $(ARGS)

lint: $(VENV)/.ready ## format check, ruff and mypy
	@ruff format --check --quiet
	@ruff check --quiet
	@mypy

format: $(VENV)/.ready ## rewrite the sources in the one format
	@ruff format
	@ruff check --fix-only --quiet

# Locks hold hashes and no address, so that each machine's pip decides where packages come from.
PIP_COMPILE := CUSTOM_COMPILE_COMMAND="make lock" .tools/pip-tools/bin/pip-compile --quiet --generate-hashes \
	--no-emit-index-url --no-emit-find-links --strip-extras --allow-unsafe

.tools/pip-tools/.ready:
	@echo "==> setting up pip-tools"
	@.ci/make-venv .tools/pip-tools
	@.tools/pip-tools/bin/pip -qq --disable-pip-version-check install 'pip-tools>=7.5,<8'
	@touch $@

lock: .tools/pip-tools/.ready ## compile the locks again (ARGS=--upgrade for newer versions)
	@$(PIP_COMPILE) $(ARGS) --extra dev -o .ci/locks/mesh.txt pyproject.toml
	@$(PIP_COMPILE) $(ARGS) -o .ci/locks/vllm.txt .ci/locks/vllm.in
	@$(PIP_COMPILE) $(ARGS) -o .ci/locks/bench.txt .ci/locks/bench.in

clean: ## remove everything that the other targets set up or wrote
	rm -rf .venv .venv-vllm .tools bench-results build *.egg-info .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find control_plane engines observability tests -name __pycache__ -prune -exec rm -rf {} +
