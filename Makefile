# make demo   install, train, and see a policy beat its data
# make test   lint, types, tests
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: venv demo test lint types slow clean

venv: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@echo "installing into .venv (a few minutes the first time)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

demo: venv
	$(BIN)/python examples/demo.py

test: lint types
	$(BIN)/python -m pytest

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv
	$(BIN)/mypy

slow: venv
	$(BIN)/python -m pytest -m slow

clean:
	rm -rf .venv build dist *.egg-info demo
