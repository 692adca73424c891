# Two commands for a fresh machine: `make demo` and `make test`. Each makes what it needs.
PYTHON ?= python3
BIN = .venv/bin

.PHONY: demo test laws thorough check docs gpu clean

demo: .venv/ready
	$(BIN)/bnn-ppl run hmc --data yacht

test: .venv/ready-test
	$(BIN)/python -m pytest -n auto -m "not statistical and not thorough and not slow"

laws: .venv/ready-test
	$(BIN)/python -m pytest -n auto -m "statistical and not thorough and not slow"

# What takes more than two seconds, such as whole commands, and the longest laws: before a release.
thorough: .venv/ready-test
	$(BIN)/python -m pytest -n auto -m "thorough and not slow"

check: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/ready-docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/build

# On a machine with an NVIDIA GPU: all that is to be measured there, stored part by part. Where it was
# cut, the same command goes on.
gpu: .venv/ready-gpu
	$(BIN)/python benchmarks/gpu.py

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

.venv/ready-gpu: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[cuda12]'
	touch .venv/ready $@

.venv/ready-docs: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch .venv/ready $@

.venv/ready-dev: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch .venv/ready .venv/ready-test $@
