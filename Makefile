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

bench: $(VENV)/.dev
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

docs: $(VENV)/.dev
	$(BIN)/python -m pytest tests/test_docs.py

clean:
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	touch $@ $(VENV)/.core
