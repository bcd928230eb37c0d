# Thin lines over what README.md spells out. VENV and PYTHON may be set: make test VENV=/tmp/v PYTHON=python3.13
PYTHON ?= python3
VENV ?= .venv

# Tests start hundreds of processes: Python compiles each module once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart test check long clean

quickstart:
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet -c constraints.txt -e '.[cpu]'
	$(VENV)/bin/isorun matrix run matrix/quickstart.yaml

test:
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet -c constraints.txt -e '.[dev]' -e plugins/isorun-tract
	$(MAKE) check VENV=$(VENV)

# What `test` runs once the environment is there.
check:
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/pytest -n auto --dist worksteal -m 'not long'

# Minutes rather than seconds: every node test of the ONNX project, many threads for longer.
long:
	$(VENV)/bin/pytest -n auto --dist worksteal -m long

clean:
	rm -rf $(VENV) isorun-results
