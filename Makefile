# `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup sweep test test-slow test-clusters system-packages lint format clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: $(STAMP) ## Make the environment in .venv (PYTHON= picks the interpreter)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

sweep: $(STAMP) ## Run the default study and print its table and its report's path
	$(BIN)/headcount train -m experiment=head_count

test: $(STAMP) ## Run the tests, with coverage of src/
	$(BIN)/pytest -n 2 --dist loadfile --cov --cov-report=term:skip-covered --durations=10

test-slow: $(STAMP) ## Run the proofs that take minutes
	$(BIN)/pytest -m slow --durations=10

test-clusters: $(STAMP) ## Run a study through a SLURM and a Ray of the test's own
	$(BIN)/pip install --quiet --editable '.[ray]'
	$(BIN)/pytest -m slow --durations=10 tests/end_to_end/test_clusters.py

system-packages: ## Install what tests use and pip has not: Chromium, SLURM (Debian, as root)
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver slurm-wlm munge

lint: $(STAMP) ## Check style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP) ## Put the code in shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove the environment and caches, but no results
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
