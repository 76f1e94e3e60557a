# Everything here runs inside .venv, which `install` makes from the locked requirements; the other targets need it and
# make it by themselves. Settings are variables: `make run ROWS=20000 SECONDS=60 RATE=300`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
WORKERS ?= 2
# Each worker of a test run has emulators of its own; the tests of one file stay together.
PYTEST := $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile
export PYTHONPATH := $(CURDIR)
export PYTHONDONTWRITEBYTECODE := 1

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9_-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: .venv/.installed ## make .venv from requirements/development.txt
.venv/.installed: requirements/development.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make install PYTHON=/path/to/python3.11" >&2; exit 1; }
	@[ ! -L .venv ] || { echo ".venv is a link, and making it anew would empty what it leads to: remove it" >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement requirements/development.txt
	@touch $@

run: install ## the whole pipeline on this machine, from start to proof (BEFORE, ROWS, SECONDS, RATE set its size)
	@$(BIN)/python -m deploy.local run

up: install ## the same, left running; prints how to query it
	@$(BIN)/python -m deploy.local up

down: install ## stop what `make up` started
	@$(BIN)/python -m deploy.local down

containers: install ## the same in containers, one of each kind killed on the way; needs a container engine
	@deploy/local/with_engine.sh $(BIN)/python -m deploy.local containers

test: lint types imports unit contract integration e2e ## everything that can be tested on this machine

lint: install ## ruff: lint and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: install ## ruff: mend what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: install ## mypy --strict over everything
	@$(BIN)/mypy

imports: install ## who may import whom (import-linter)
	@$(BIN)/lint-imports

unit: install ## memory only, seconds
	@$(PYTEST) tests/unit

contract: install ## each port's promises, on the fake and on the real adapter
	@$(PYTEST) tests/contract

integration: install ## one adapter against one emulator
	@$(PYTEST) tests/integration

e2e: install ## the whole pipeline, with kills in between
	@$(BIN)/pytest tests/e2e

bench: install ## the numbers, on screen and in build/bench.json (BENCH_ONLY, BENCH_CHANGES, BENCH_RUNS, ...)
	@$(BIN)/python -m tests.benchmarks

docs: install ## write docs/*.md anew that are made from code (configuration, metrics)
	@$(BIN)/python -m tests.documents

lock: install ## write requirements/*.txt anew from pyproject.toml
	@deploy/lock.sh

.PHONY: help install run up down containers test lint format types imports unit contract integration e2e bench docs lock
