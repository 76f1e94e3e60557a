# Everything here runs inside .venv, which `install` makes from the locked requirements; the other targets need it and
# make it by themselves. Settings are variables: `make run ROWS=20000 SECONDS=60 RATE=300`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
WORKERS ?= 2
# Each worker of a test run has emulators of its own; the tests of one module stay together; costly modules start first.
PYTEST := $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
export PYTHONPATH := $(CURDIR)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9_-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: .venv/.installed ## make .venv from requirements/development.txt
.venv/.installed: requirements/development.txt
	@deploy/install.sh "$(PYTHON)"
	@touch $@

archive: .venv/.archive ## the classes that Spark loads in one file: each start of the consumer takes less (`make test` makes it)
.venv/.archive: .venv/.installed
	@$(BIN)/python -m services.cdc_consumer.wiring.class_archive
	@touch $@

needs: # Java and the Cloud SDK's emulators, before anything is installed
	@PYTHONPATH= "$(or $(PYTHON),python3)" deploy/local/platform/needs.py

run: needs install ## the whole pipeline on this machine, from start to proof (BEFORE, ROWS, SECONDS, RATE set its size)
	@$(BIN)/python -m deploy.local run

up: needs install ## the same, left running; prints how to query it
	@$(BIN)/python -m deploy.local up

down: install ## stop what `make up` started
	@$(BIN)/python -m deploy.local down

containers: install ## the same in containers, one of each kind killed on the way; needs a container engine
	@deploy/local/with_engine.sh $(BIN)/python -m deploy.local containers

quick: install ## what a commit must pass: minutes, without Java or emulators
	@$(MAKE) --no-print-directory --jobs 2 types unit lint imports

test: needs quick archive contract pipeline ## everything that a change must pass

test-all: export SEEDS = 100
test-all: tools clients alerts deploy-checks test browser build/spark/.installed ## `make test` with every seed, replicas that come and go, two versions side by side, moves and recoveries, the benchmarks at a tiny size, older versions of Spark, `make clients`, `make alerts`, `make deploy-checks`, `make browser`
	@$(PYTEST) tests/exhaustive

lint: install ## ruff: lint and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: install ## ruff: fix what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: install ## mypy --strict over everything
	@$(BIN)/mypy

imports: install ## who may import whom (import-linter)
	@$(BIN)/lint-imports

unit: install ## memory only, minutes
	@$(PYTEST) tests/unit

contract: install ## each port's promises, on the fake and on the real adapter
	@$(PYTEST) tests/contract

integration: install ## one adapter against one emulator
	@$(PYTEST) tests/integration

e2e: install ## the whole pipeline, with kills in between
	@$(PYTEST) tests/e2e

pipeline: install # integration and e2e in one run: neither worker waits for the other between the two
	@$(PYTEST) tests/integration tests/e2e

clients: needs install ## Google's clients and the sample subscribers, live (tests/clients); needs go, java, mvn, node and npm
	@tests/clients/build.sh
	@$(PYTEST) tests/clients

browser: install ## the console, as an operator uses it, and pages of the site, in a headless Chromium
	@tests/tools.sh "make browser" chromium
	@$(PYTEST) tests/browser

alerts: install ## the cases of each alert rule, and that they need each number of it; needs promtool
	@tests/tools.sh "make alerts" promtool
	@promtool check rules deploy/alerts/*.yaml
	@promtool test rules deploy/alerts/cases/*.yaml
	@$(PYTEST) tests/alerts

deploy-checks: install build/deploy/.installed ## the Terraform module and the chart (tests/deploy); needs terraform and go
	@$(PYTEST) tests/deploy
build/deploy/.installed: build/deploy/.packages tests/deploy/tools.sh
	@tests/deploy/tools.sh
	@touch $@
build/deploy/.packages: .venv/.installed requirements/deploy.txt
	@$(BIN)/python -m venv --clear build/deploy
	@build/deploy/bin/pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes \
		--requirement requirements/deploy.txt
	@touch $@

cluster: install ## `make containers` in pods: the chart on a node of Kubernetes on this machine (tests/cluster); needs root, containerd and a container engine
	@deploy/local/with_engine.sh $(BIN)/python -m deploy.local images
	@$(MAKE) --no-print-directory build/cluster/.installed # after what says that there is no engine: it takes a while
	@tests/cluster/isolated.sh $(BIN)/pytest --capture=no tests/cluster
build/cluster/.installed: build/deploy/.installed tests/cluster/tools.sh
	@tests/cluster/tools.sh
	@mkdir -p $(@D)
	@touch $@

sbom: install build/deploy/.packages ## what is in each image: CycloneDX files in build/sbom
	@$(BIN)/python -m deploy.release.sbom

audit: install build/deploy/.packages ## known vulnerabilities of the locked Python packages, from osv.dev
	@deploy/release/audit.sh

release: install build/deploy/.installed ## chart, SBOMs and checksums in build/release, if version, changelog and tag agree (IMAGES)
	@$(BIN)/python -m deploy.release.files $(IMAGES)

build/spark/.installed: $(wildcard requirements/spark-*.txt) requirements/java-21.txt tests/exhaustive/spark_versions.sh .venv/.installed
	@tests/exhaustive/spark_versions.sh
	@touch $@

tools: # every tool that `make test-all` needs, named at once
	@tests/tools.sh

bench: install ## the numbers, on screen and in build/bench.json (BENCH_ONLY, BENCH_CHANGES, BENCH_RUNS, ...)
	@$(BIN)/python -m tests.benchmarks

docs: install ## write anew the pages of docs/reference that are made from code
	@$(BIN)/python -m tests.documents

site: docs ## the documentation as a web site, in build/site; a warning is an error
	@$(BIN)/python -m sphinx --builder html --conf-dir docs --doctree-dir build/doctrees --fail-on-warning --quiet . build/site

lock: install ## write requirements/*.txt anew from pyproject.toml
	@deploy/lock.sh

.PHONY: help install needs run up down containers archive quick test test-all lint format types imports unit contract integration e2e pipeline clients browser alerts deploy-checks cluster sbom audit release tools bench docs site lock
