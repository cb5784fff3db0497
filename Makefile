# Two commands matter: `make demo` and `make test`. Each sets up everything it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Engines wait more than they compute: two workers, each with its own Spark, use two cores well.
SIDE_BY_SIDE := -n 2 --dist worksteal

.PHONY: demo test check format bench setup clean
.DEFAULT_GOAL := help

help: ## show the commands
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: setup ## the story in one screen: two kill -9, a zombie, and every row counted
	@$(BIN)/strandline demo

test: setup ## every test: fast ones first, then real engines and killed processes
	@$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) tests --ignore tests/processes --ignore tests/runtime --ignore tests/docs
	@$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) tests/runtime tests/docs tests/processes

check: $(READY) ## format, lint, strict types, import direction, fast tests
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q -m "not engine and not process" tests

format: $(READY) ## rewrite the code in the project's style
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: setup ## what the fenced commit costs beside Iceberg's own sink
	@mkdir -p bench/results
	@$(BIN)/python bench/commit.py --json bench/results/commit.json

setup: $(READY) ## Java and jars, fetched once
	@$(BIN)/strandline setup >&2

$(READY): requirements.lock pyproject.toml
	@echo "Setting up $(VENV): locked dependencies (a minute or two, once)" >&2
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed; this is " + sys.version.split()[0])'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $(READY)

clean: ## remove the virtual environment and caches of tools
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
