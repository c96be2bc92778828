PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.7
# `make lock LOCK_FLAGS=--upgrade` takes the newest versions; without it pins that still fit stay.
LOCK_FLAGS ?=
FAULTS_FLAGS ?=
SOAK_FLAGS ?=
# Measured: the tests need 11 minutes of processor time and wait for twice as long, so four workers
# more than cores keep the cores busy.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 4)

.DEFAULT_GOAL := help
.PHONY: help setup demo test check slow bench tables faults soak docs golden lock clean static compiled
.DELETE_ON_ERROR:

help: ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(VENV)/.installed ## make .venv from requirements.lock (the other targets do it by themselves)

demo: setup ## 17 real processes form a ring, are damaged and heal, in terminal and browser
	@$(BIN)/skipring demo

# The tests start hundreds of Python processes; .pyc files save each the compilation. Measured: the
# first collection takes 6.7 s of processor time, later ones 1.9, so one process collects before the
# workers do, on the core that the checks leave free.
test: export PYTHONDONTWRITEBYTECODE :=
test: setup ## everything that CI runs: format, lint, types, imports, all tests but the slow ones
	@$(MAKE) --no-print-directory -j 2 static compiled
	$(BIN)/pytest -q -rs -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow"

check: static ## what to run before every commit: as test, but only the fast tests
	$(BIN)/pytest -q -n 2 --dist worksteal -m "not slow and not heavy"

slow: setup ## all tests, the long random runs and large rings too
	$(BIN)/pytest -q -n auto --dist worksteal -m ""

bench: setup ## measure each target of docs/performance.md beside our peers (less than half an hour)
	@$(BIN)/skipring bench targets

tables: setup ## measure the other tables of docs/performance.md, as far as peers are installed (an hour)
	@$(BIN)/skipring bench fanout --repeats 2
	@$(BIN)/skipring bench history
	@$(BIN)/skipring bench sim
	@$(BIN)/skipring bench index
	@$(BIN)/skipring bench reconcile
	@$(BIN)/skipring bench spark
	@$(BIN)/skipring bench pipeline

# FAULTS_FLAGS=--allow-missing succeeds where a tool, such as cc or Spark, is missing.
faults: setup ## cause every fault in real processes and write docs/faults.md (half an hour)
	@$(BIN)/python -m faults --write docs/faults.md $(FAULTS_FLAGS)

soak: setup ## measure growth under churn for an hour (SOAK_FLAGS="--minutes 5" for less)
	@$(BIN)/python -m faults.soak $(SOAK_FLAGS)

docs: setup ## build the pages of docs/ into build/docs, with the reference; a warning is an error
	$(BIN)/sphinx-build -q -W --keep-going docs build/docs
	@echo "open build/docs/index.html"

golden: setup ## rewrite transcripts, docs/troubleshooting.md and house counts; review the diff
	SKIPRING_GOLDEN=rewrite $(BIN)/pytest -q -m "" tests/golden tests/cli/test_output.py tests/house/test_troubleshooting.py \
		tests/house/test_attributes.py tests/house/test_private_attributes.py \
		tests/house/test_sizes.py tests/house/test_test_files.py tests/house/test_words.py

lock: ## rewrite requirements.lock from pyproject.toml (LOCK_FLAGS=--upgrade for newer versions)
	@echo "locking with uv $(UV_VERSION)"
	@rm -rf .venv-lock
	@$(PYTHON) -m venv .venv-lock
	@trap 'rm -rf .venv-lock' EXIT; \
	.venv-lock/bin/python -m pip install -qq uv==$(UV_VERSION) && \
	.venv-lock/bin/uv pip compile pyproject.toml --extra dashboard --extra spark --group dev --group docs --universal --python-version 3.11 \
		--generate-hashes --no-config --no-emit-index-url --no-emit-find-links \
		--custom-compile-command 'make lock' --quiet $(LOCK_FLAGS) --output-file requirements.lock

clean: ## remove .venv, caches and build output
	@rm -rf $(VENV) .venv-lock .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	@find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

static: setup
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary
	$(BIN)/lint-imports --no-logo

compiled: setup
	@$(BIN)/pytest -q --collect-only > /dev/null || true  # the tests report what cannot be imported

# Two stamps: a new lock makes a new environment, a new pyproject.toml only installs skipring again.
$(VENV)/.locked: requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "skipring needs Python 3.11 or newer, and '$(PYTHON)' is not: try 'make setup PYTHON=python3.12'." >&2; exit 1; }
	@echo "making $(VENV) from requirements.lock (once; about a minute)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements.lock
	@touch $@

$(VENV)/.installed: $(VENV)/.locked pyproject.toml
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
