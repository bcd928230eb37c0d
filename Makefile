# Thin lines over what README.md and CONTRIBUTING.md spell out. VENV and PYTHON may be set:
#   make test VENV=/tmp/v PYTHON=python3.13
PYTHON ?= python3
VENV ?= .venv
PYTEST = $(VENV)/bin/pytest -n auto --dist worksteal

# Tests start hundreds of processes: Python compiles each module once.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart environment lint check suite suite-avx2 suite-memory test coverage long test-lowest test-newest docs \
    dist clean

quickstart:
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet -c constraints.txt -e '.[cpu]'
	$(VENV)/bin/isorun matrix run matrix/quickstart.yaml

environment:
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --no-compile -c constraints.txt -e '.[dev]' -e plugins/isorun-tract

# Style, types and layers: a minute.
lint:
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# What to run before a commit: a few minutes.
check: lint
	$(PYTEST) -m 'not long' tests/test_docs.py tests/test_project.py $(UNIT)

UNIT = tests/core/compat tests/core/parity tests/core/plugin tests/core/system tests/core/types tests/core/test_errors.py \
    tests/core/text tests/matrix/spec tests/matrix/report

suite:
	$(PYTEST) -m 'not long'

# The suite as on a processor without AVX-512, VNNI and AMX. Linux on x86-64, with a C compiler.
suite-avx2: $(VENV)/preload/avx2.so
	LD_PRELOAD=$(abspath $<) $(PYTEST) -m 'not long'

# The suite where memory that was not written, or was freed, reads as NaN. Writes outside of a block are an error. What is
# freed is kept for a while: two tests count memory.
suite-memory: $(VENV)/preload/memory.so
	rm -rf $(VENV)/preload/reports
	mkdir $(VENV)/preload/reports
	MEMORY_REPORTS=$(abspath $(VENV)/preload/reports) LD_PRELOAD=$(abspath $<) $(PYTEST) -m 'not long' \
	    --deselect tests/core/system/test_process_usage.py::test_free_memory_can_be_returned \
	    -k 'not KeepsClosedExecutables'
	! grep -r . $(VENV)/preload/reports

$(VENV)/preload/%.so: tools/preload/%.c
	mkdir -p $(@D)
	$(CC) -O2 -Wall -Wextra -shared -fPIC -fno-builtin -o $@ $< -ldl -lpthread

# Everything but `long`, as continuous integration runs it. mypy runs on one core, beside the tests.
test: environment
	$(MAKE) --jobs=2 lint suite VENV=$(VENV)

# The statements that the suite runs, in whichever process; files below 85 % by name. The report is in coverage.md.
coverage:
	$(VENV)/bin/coverage erase
	$(VENV)/bin/coverage run $(PYTEST) -m 'not long'
	$(VENV)/bin/coverage combine --quiet
	$(VENV)/bin/coverage json --quiet
	$(VENV)/bin/python tools/coverage_report.py coverage.json | tee coverage.md

# Minutes rather than seconds: every node test of the ONNX project, many threads for longer.
long:
	$(PYTEST) -m long

# The lowest versions that pyproject.toml allows, and the newest that there are. Both need uv, and make an environment.
test-lowest:
	$(PYTHON) -m venv $(VENV)-lowest
	uv pip install --quiet --python $(VENV)-lowest/bin/python --resolution lowest-direct -e '.[dev]' -e plugins/isorun-tract
	$(MAKE) suite VENV=$(VENV)-lowest

test-newest:
	$(PYTHON) -m venv $(VENV)-newest
	uv pip install --quiet --python $(VENV)-newest/bin/python --upgrade -e '.[dev]' -e plugins/isorun-tract
	$(MAKE) suite VENV=$(VENV)-newest

# The documentation site, in site/; a warning, such as a link without a target, is an error.
docs:
	$(VENV)/bin/pip install --quiet -c constraints.txt -e '.[docs]'
	$(VENV)/bin/mkdocs build --strict

# The archives of a release, checked as the package index does.
dist:
	rm -rf dist
	$(VENV)/bin/pip install --quiet -c constraints.txt build twine
	$(VENV)/bin/python -m build --outdir dist
	$(VENV)/bin/twine check --strict dist/*

clean:
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-newest dist site isorun-results coverage.json coverage.md .coverage*
