# Everything starts from Python 3.11, make and a package index.
#   make demo    the main job with the model in the box
#   make test    the tests; `make slow` the minutes-long ones
#   make check   format, lint, types, architecture

PYTHON ?= python3.11
VENV ?= .venv
PACKAGE ?= -e .
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test slow check format clean

demo: $(VENV)/.demo
	@mkdir -p demo-output
	$(BIN)/elmokit embed examples/gettysburg.txt --text -o demo-output/gettysburg.h5
	@echo
	@echo "One word in different sentences: cosine similarity, 1.00 where two vectors point the same way."
	@echo "static is layer 0, which sees the letters of the word alone; layers 1 and 2 read the sentence."
	$(BIN)/python examples/polysemy.py

test: $(VENV)/.dev
	$(BIN)/pytest -n 2 -m "not slow"

slow: $(VENV)/.dev
	$(BIN)/pytest -m slow

check: $(VENV)/.dev
	$(BIN)/ruff format --check elmokit tests examples
	$(BIN)/ruff check elmokit tests examples
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff format elmokit tests examples
	$(BIN)/ruff check --fix elmokit tests examples

clean:
	rm -rf $(VENV) build dist demo-output .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --constraint constraints.txt $(PACKAGE)[text]
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --constraint constraints.txt $(PACKAGE)[dev]
	@touch $@ $(VENV)/.demo
