# Two commands matter: `make demo` (the main job, without torch) and `make test` (everything).
PYTHON ?= python3.11
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test smoke lint audit fuzz bench docs clean

demo: $(VENV)/.core
	$(BIN)/focalcal demo

# One thread per worker: the two workers share two cores.
test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

# Every table and figure of the papers by name, at its smallest scale: minutes on a CPU.
smoke: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/focalcal reproduce all --scale smoke --out runs/smoke

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Known faults of the dependencies; the list of them is fetched, so this needs the network.
audit: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/python -m pip_audit --requirement constraints.txt --no-deps --disable-pip

# At least FUZZ new cases over all loaders and calibrators, and how many of them ran.
FUZZ ?= 105000
fuzz: $(VENV)/.dev
	rm -f .fuzz-counts
	OMP_NUM_THREADS=1 FOCALCAL_FUZZ_CASES=$(FUZZ) FOCALCAL_FUZZ_LOG=.fuzz-counts \
	  $(BIN)/python -m pytest tests/fuzz -q -n 2 --dist load
	@sort -k2 .fuzz-counts; awk '{n += $$1} END {print n " fuzz cases"}' .fuzz-counts

bench: $(VENV)/.dev
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

docs: $(VENV)/.dev
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs site
	@echo "open site/index.html"

clean:
	rm -rf $(VENV) dist build site .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	touch $@ $(VENV)/.core
