# make demo   install, train, and see a policy beat its data
# make test   lint, types, tests
# make bench-peers   our baselines against d3rlpy's, by turns (ARGS='--datasets FOLDER ...')
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PEERS := .venv-peers/.installed

.PHONY: venv demo test lint types slow bench-peers clean

venv: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@echo "installing into .venv (a few minutes the first time)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

demo: venv
	$(BIN)/python examples/demo.py

test: lint types
	$(BIN)/python -m pytest -n auto

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv
	$(BIN)/mypy

slow: venv
	$(BIN)/python -m pytest -m slow

# the same torch for both, named here since d3rlpy alone would take any
$(PEERS):
	@echo "installing d3rlpy into .venv-peers (a few minutes the first time)"
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 d3rlpy==2.8.1
	@touch $@

bench-peers: venv $(PEERS)
	$(BIN)/python benchmarks/peers.py --out benchmarks/results/peers.json $(ARGS)

clean:
	rm -rf .venv .venv-peers build dist *.egg-info demo
