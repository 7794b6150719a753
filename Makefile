# make preflight          judge the recorded demo nodes (needs git, make, python3 3.11+)
# make preflight INVENTORY=inventories/local     judge this machine
# make test               every check that the project has
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
INVENTORY ?=
# The demo shows faults on purpose, so they must not fail the run; any other inventory decides for itself.
FAIL_ON := $(if $(INVENTORY),,-e preflight_fail_on=never)

export PATH := $(BIN):$(PATH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
export PYTHONDONTWRITEBYTECODE := 1
export LC_ALL := C.UTF-8

.PHONY: help preflight demo pages test lint units fuzz integration molecule sanity docs cores bench clean

help:  ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

$(VENV)/run.done: requirements/run.txt requirements/constraints.txt
	@bash requirements/venv.sh "$(PYTHON)" $(VENV) requirements/run.txt
	@touch $@

$(VENV)/test.done: requirements/test.txt requirements/run.txt requirements/constraints.txt
	@bash requirements/venv.sh "$(PYTHON)" $(VENV) requirements/test.txt
	@touch $(VENV)/run.done $@

preflight: $(VENV)/run.done  ## Judge the nodes of INVENTORY (default: the recorded demo nodes)
	@ansible-playbook inferops.vllm.preflight -i $(or $(INVENTORY),inventories/demo) $(FAIL_ON) $(ARGS)

demo: $(VENV)/run.done  ## Record the demo inventories again
	@PYTHONPATH=collections:. $(BIN)/python -m tests.costume.record

pages: $(VENV)/run.done  ## Write the pages of docs/ that are made from the code
	@PYTHONPATH=collections:. $(BIN)/python -m tests.pages

test: $(VENV)/test.done lint sanity docs molecule molecule-lab test-lab  ## Run every check; what needs root says so and is left out without it
	@$(BIN)/python -m pytest -n 2 --dist loadscope

lint: $(VENV)/test.done  ## ruff, mypy, yamllint, ansible-lint
	@ruff check .
	@mypy $(addprefix collections/ansible_collections/inferops/vllm/plugins/,module_utils plugin_utils)
	@ansible-lint --offline --profile production --strict

docs: $(VENV)/test.done  ## Plugin documentation and changelog
	@bash tests/docs.sh

sanity: $(VENV)/test.done  ## ansible-test sanity on the built artefact
	@bash tests/sanity.sh

molecule: $(VENV)/test.done  ## Scenarios that need no test nodes
	@molecule test -s preflight

units: $(VENV)/test.done  ## Unit tests alone
	@$(BIN)/python -m pytest -n 2 tests/unit

fuzz: $(VENV)/test.done  ## Property tests with new examples, many of them
	@HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -n 2 tests/unit/node tests/unit/checks tests/unit/report

integration: $(VENV)/test.done  ## Playbooks through ansible-runner
	@$(BIN)/python -m pytest tests/integration

cores:  ## The demo with every supported ansible-core that this machine has a Python for
	@bash tests/cores.sh

bench: $(VENV)/test.done  ## Measures, printed as ratios
	@PYTHONPATH=collections:. $(BIN)/python -m tests.benchmarks

clean:  ## Remove what make made
	@rm -rf $(VENV) .ansible .mypy_cache .ruff_cache .hypothesis reports tests/output

-include tests/lab/lab.mk
