# Everything a person types, each with one line. `make help` lists them.
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
# the first one of these versions; PYTHON=/path/to/python names another
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
	$$name -c '$(FITS)' 2>/dev/null && echo $$name && break; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALLER ?= $(BIN)/pip install
# one test process per core, each with one torch thread; they take tests from each other when they run out
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal
STAMP := $(VENV)/.installed
DEV := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
# only `make run` sends numbers where W&B is set up
crash bench peers golden: export WANDB_MODE := disabled

$(STAMP): pyproject.toml
	@echo "setting up $(VENV): $(if $(CPU),1.7 GB,6 GB (most of it CUDA; CPU=1 makes it 1.7 GB)) and some minutes"
	@test -n "$(PYTHON)" || { echo "no Python 3.11 to 3.13 found; make PYTHON=/path/to/python names one" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(if $(CPU),$(BIN)/pip install --quiet uv)
	$(if $(CPU),$(BIN)/uv pip install --quiet --python $(BIN)/python --torch-backend=cpu torch torchvision)
	$(INSTALLER) -e .
	touch $(STAMP)

$(DEV): $(STAMP)
	@echo "adding what tests, linters and the site of the docs need"
	$(INSTALLER) -e '.[dev]'
	touch $(DEV)

.PHONY: help setup run test test-slow test-all lint docs figures pages-check crash bench peers golden messages rules settings

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(DEV) ## make .venv and install everything

run: $(STAMP) ## set up and run the main job: ACE on handwritten digits
	$(BIN)/afl-run algorithm=ace delay=exp_beta30

test: $(DEV) ## set up and pass the fast tests (minutes)
	$(PYTEST)

test-slow: $(DEV) ## the other tests: slow ones, and those that start processes
	$(PYTEST) -m "slow or process"

test-all: $(DEV) ## every test
	$(PYTEST) -m ""

lint: $(DEV) ## style, common mistakes, spelling and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	git ls-files -z | xargs -0 $(BIN)/codespell
	$(BIN)/mypy src

docs: $(DEV) ## every page as a site, with the API, rules and figures, into build/site (README.html first)
	$(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning --keep-going -c docs . build/site

figures: $(STAMP) ## every page of every paper from the runs in runs/, into results/
	$(BIN)/afl-report all
	$(BIN)/afl-report bank

pages-check: $(DEV) ## write every page again from the archives and compare all files with results/ (minutes)
	PAGES_CHECK=1 $(PYTEST) -m "" tests/reports/test_archived_pages.py

crash: $(DEV) ## kill -9 every algorithm 20 times and compare (a few minutes)
	PYTHONPATH=tests $(BIN)/python tests/crashing.py 20

bench: $(STAMP) ## updates per second beside a bare PyTorch loop, added to results/speed (half an hour on 2 cores)
	$(BIN)/python scripts/benchmark.py --history results/speed

peers: $(STAMP) ## FLGo, FLSim, FedLab and APPFL beside ours (downloads 7 GB into .peers, an hour on 2 cores)
	$(BIN)/python scripts/peers/compare.py --environments .peers

golden: $(DEV) ## renew the golden trajectories (say why in the commit)
	$(BIN)/python tests/algorithms/golden.py

messages: $(DEV) ## renew tests/messages.txt, what wrong commands answer; read the difference
	RENEW_MESSAGES=1 $(BIN)/python -m pytest -m "" tests/test_messages.py

rules: $(DEV) ## docs/explanation/rules.md and its figure, from the rules' declarations; the pages in results/by_rule
	$(BIN)/python scripts/rules.py

settings: $(DEV) ## the table of sweeps/README.md, from the yaml files and the archives
	$(BIN)/python scripts/settings_page.py
