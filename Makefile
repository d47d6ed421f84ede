# Every recipe makes its own environment first; nothing but Python 3.11+ and make is needed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STATE  ?= .state

.DEFAULT_GOAL := help
.PHONY: help up test soak check format bench clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# The stamp is newer than what it was made from, so a changed dependency installs again.
$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Backchannel needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	@echo "Making the environment in $(VENV) (once, about a minute) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

up: $(VENV)/.ready ## Start the gateway; ARGS="--port 18931" gives it options, STATE=folder another state folder
	@$(BIN)/backchannel --state $(STATE) up --init $(ARGS)

test: $(VENV)/.ready ## Run the tests
	$(BIN)/pytest -n 2

soak: $(VENV)/.ready ## Kill it for a minute while sessions exchange; FOR=600 takes longer, SEED=1 repeats one
	@$(BIN)/python -m tests.soak.soak $(if $(FOR),--seconds $(FOR)) $(if $(SEED),--seed $(SEED))

check: $(VENV)/.ready ## Format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.ready ## Put the code into its format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove what the recipes made; the state folder, with all conversations, stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

bench: $(VENV)/.ready ## Measure it; ROWS=list,run selects, QUICK=1 measures less
	@$(BIN)/python -m bench $(if $(ROWS),--rows $(ROWS)) $(if $(QUICK),--quick)
