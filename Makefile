# Two commands for a fresh machine: `make demo` and `make test`. Each makes what it needs.
PYTHON ?= python3
BIN = .venv/bin

.PHONY: demo test check clean

demo: .venv/ready
	$(BIN)/bnn-ppl run hmc --data yacht

test: .venv/ready-test
	$(BIN)/python -m pytest -n auto

check: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

.venv/ready: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/ready-test: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch .venv/ready $@

.venv/ready-dev: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch .venv/ready .venv/ready-test $@
