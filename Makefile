# Two commands matter: `make demo` (the main job, without torch) and `make test` (everything).
PYTHON ?= python3.11
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test smoke lint audit fuzz fuzz-atheris bench docs clean

demo: $(VENV)/.core
	$(BIN)/focalcal demo

# One thread per worker: the two workers share two cores.
test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

# Every table and figure of the papers by name, at its smallest scale: minutes on a CPU.
smoke: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/focalcal reproduce all --scale smoke --out runs/smoke

# Style and types; nothing here needs the network.
lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy

# Known vulnerabilities of the dependencies, from the network; apart from `make lint`, whose result
# must not change from day to day.
audit: $(BIN)/python
	@$(BIN)/python .ci/audit.py --strict

# At least FUZZ new cases over all loaders and calibrators, and how many of them ran.
FUZZ ?= 105000
fuzz: $(VENV)/.dev
	rm -f .fuzz-counts
	OMP_NUM_THREADS=1 FOCALCAL_FUZZ_CASES=$(FUZZ) FOCALCAL_FUZZ_LOG=.fuzz-counts \
	  $(BIN)/python -m pytest tests/fuzz -q -n 2 --dist load
	@sort -k2 .fuzz-counts; awk '{n += $$1} END {print n " fuzz cases"}' .fuzz-counts

# Coverage-guided, one loader after the other; atheris has wheels for Linux and Python 3.11 to 3.13.
SECONDS_EACH ?= 120
fuzz-atheris: $(VENV)-atheris/.ready
	@for kind in npz csv json stats; do echo "== $$kind"; \
	  $(VENV)-atheris/bin/python tests/fuzz/atheris_loaders.py $$kind \
	    -max_total_time=$(SECONDS_EACH) -verbosity=0 -print_final_stats=1 || exit 1; done

bench: $(VENV)/.dev
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

docs: $(VENV)/.dev
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs site
	@echo "open site/index.html"

clean:
	rm -rf $(VENV) $(VENV)-* dist build site .pytest_cache .ruff_cache .mypy_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)-atheris/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-atheris
	$(VENV)-atheris/bin/python -m pip install --quiet --disable-pip-version-check \
	  -c constraints.txt -e '.[parquet]' atheris
	touch $@

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	touch $@

$(VENV)/.dev: pyproject.toml papers/pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]' -e ./papers
	touch $@ $(VENV)/.core
