# make run   the main job: five silos learn one classifier, offline, with pictures
# make test  all checks; make test-slow, the second tier; make bench, speed against peers; make budget, accuracy at a total
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# One thread for each test worker's linear algebra: two workers share two cores.
ONE_THREAD := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
# Two workers, each with one part of the tests in a row: what a file's tests share is made once.
TWO := -n 2 --dist worksteal
# Processes that tests start find their bytecode: compiling it takes ten times as long as a node's start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run docs test types first-tier test-slow test-matrix bench growth budget plan-study soak observed fuzz browser pictures clean \
	requirements wheel sbom image
.DELETE_ON_ERROR:

run: $(VENV)/.report
	$(BIN)/dynadp demo

# The site, in docs/_build/html; nothing is fetched, and a warning is an error.
docs: $(VENV)/.docs
	$(BIN)/sphinx-build -E -W --keep-going -d docs/_build/doctrees docs docs/_build/html

test: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(MAKE) --no-print-directory --jobs=2 types first-tier

types: $(VENV)/.dev
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

first-tier: $(VENV)/.dev
	$(ONE_THREAD) $(BIN)/pytest $(TWO) -m "not slow" --cov --cov-report=term

test-slow: $(VENV)/.dev
	@command -v chromium >/dev/null || [ "$$(id -u)" != 0 ] || $(MAKE) browser || echo "no Chromium: browser tests are skipped"
	$(ONE_THREAD) $(BIN)/pytest $(TWO) -m slow

# Debian's Chromium, which the browser tests drive; nothing is fetched by the tests themselves.
browser:
	@command -v chromium >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
		--no-install-recommends chromium fonts-dejavu-core; }

# The pictures of the page and the report in docs/pictures, taken by the browser tests.
pictures: $(VENV)/.dev browser
	DYNADP_PICTURES=docs/pictures $(BIN)/pytest -m slow tests/report/test_browser.py tests/report/test_replay_browser.py -k "accessible or attacks"
	DYNADP_PICTURES=docs/pictures $(BIN)/pytest -m slow tests/report tests/project/test_cards.py -k "mouse or terminal or fits"
	$(BIN)/python docs/make_neighbour_picture.py

# The first tier with every Python from 3.11 that can be had here, and with the lowest versions that pyproject.toml admits.
test-matrix:
	scripts/matrix.sh

$(VENV)/.tested: $(VENV)/.dev FORCE
	$(ONE_THREAD) $(BIN)/pytest $(TWO) -m "not slow"

$(VENV)/.lowest-tested: $(VENV)/bin/python FORCE
	$(BIN)/python -m pip install --quiet uv
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --resolution lowest-direct --editable '.[dev]'
	$(ONE_THREAD) $(BIN)/pytest $(TWO) -m "not slow"

FORCE:

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks

growth: $(VENV)/.bench
	$(BIN)/python -m benchmarks.growth

# Test error on Adult at a total epsilon: sums beside ADMM, the paper's algorithms and diffprivlib.
budget: $(VENV)/.bench
	$(BIN)/python -m benchmarks.budget

# The planner's constants, found again on census rows, and sums beside ADMM.
plan-study: $(VENV)/.bench
	$(BIN)/python -m benchmarks.plan_study
	$(BIN)/python -m benchmarks.sum_study
	$(BIN)/python -m benchmarks.algorithms

# Ten silos as processes, a thousand rounds, random faults: one model, and ledgers that match letters.
soak: $(VENV)/.bench
	$(BIN)/python -m benchmarks.soak

# Two nodes for ten thousand rounds, watched all the time: memory, files and disk.
observed: $(VENV)/.bench
	$(BIN)/python -m benchmarks.observed

# Readers against very many bytes and tables from anywhere.
fuzz: $(VENV)/.dev
	$(ONE_THREAD) $(BIN)/pytest -n 2 --hypothesis-profile=fuzz tests/project/test_fuzz.py tests/engines/test_letters.py

# Every package that a node needs, with hashes and without an index's address, for all Pythons.
requirements: $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
		--no-emit-index-url --no-emit-find-links --extra network pyproject.toml --output-file deploy/requirements.txt

wheel: $(VENV)/bin/python
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

# A bill of materials (CycloneDX) of the hashed requirements and the package, from an environment with nothing else.
sbom: wheel
	rm -rf .venv-sbom .venv-sbom-tool && $(PYTHON) -m venv .venv-sbom && $(PYTHON) -m venv .venv-sbom-tool
	.venv-sbom/bin/pip install --quiet --require-hashes --only-binary :all: -r deploy/requirements.txt
	.venv-sbom/bin/pip install --quiet --no-deps dist/dynadp-*.whl
	.venv-sbom/bin/pip uninstall --quiet --yes pip setuptools
	.venv-sbom-tool/bin/pip install --quiet 'cyclonedx-bom>=7'
	.venv-sbom-tool/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml \
		--output-file dist/dynadp.cdx.json .venv-sbom/bin/python

# An OCI image from a debootstrap root; needs root.
image: wheel
	scripts/image.sh

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "dynadp needs Python 3.11 or newer; install one or call: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

# Each stamp is an installation with the extra of its name; it is renewed when pyproject.toml changes.
$(VENV)/.%: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[$*]'
	@touch $@

clean:
	rm -rf docs/_build docs/generated .venv* .matrix .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
