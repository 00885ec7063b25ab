# Everything on a fresh machine with nothing but Python (3.11 or newer) and make.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed

.PHONY: setup demo test test-all crash-test fuzz lint clean

setup: $(STAMP)

# the stamp makes a second call start at once
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "etag needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

DEMO := runs/demo
# one thread: two collapse when anything else runs on the machine
demo: $(STAMP)
	@for method in fine etag joint; do \
		OMP_NUM_THREADS=1 $(BIN)/etag run digits --method $$method --out $(DEMO)/$$method --restart || exit $$?; \
	done
	@$(BIN)/etag report $(DEMO)/fine $(DEMO)/etag $(DEMO)/joint --out $(DEMO)/report.html

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m 'not slow'

test-all: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

# kills every command before its changes of files, again and again; prints where, and that nothing was lost
crash-test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 tests/learner/test_checkpoints.py
	OMP_NUM_THREADS=1 $(BIN)/python tests/crash/harness.py

# damaged and forged files for every reader: ten minutes each, two at a time
fuzz: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/harness.py 600

clean:
	rm -rf .venv runs dist
