# Two commands matter: `make up` runs a mesh on this machine, `make test` passes every test.
# Both set up what they need below .venv, .venv-vllm and .tools; a second run finds it all there.

PYTHON ?= python3
ENGINE ?= simulated
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help up test check format lock clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(VENV)/.ready: .ci/locks/mesh.txt pyproject.toml
	@echo "==> setting up $(VENV) from .ci/locks/mesh.txt"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r .ci/locks/mesh.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
