# Every recipe makes its own environment first; nothing but Python 3.11+ and make is needed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
LOG    := $(VENV)/install.log
STATE  ?= .state

.DEFAULT_GOAL := help
.PHONY: help up needs test quick test-postgres interop soak soak-cluster check format reference bench shots clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# Runs an installer, $(1). On a terminal it shows for how long, and what it is at; the rest is in the log.
define installed
	: >$(LOG); { $(1); } >$(LOG) 2>&1 & \
	installer=$$!; passed=0; \
	while kill -0 $$installer 2>/dev/null; do \
	  if [ -t 1 ]; then printf '\r  %3d s  %-66.66s' $$passed "$$(grep -v WARNING $(LOG) | tail -n 1)"; fi; \
	  sleep 1; passed=$$((passed + 1)); \
	done; \
	if [ -t 1 ]; then printf '\r%76s\r' ''; fi; \
	wait $$installer && echo "Installed in $$passed s." || \
	{ tail -n 20 $(LOG); echo "The installation failed; all of it is in $(LOG)."; false; }
endef

# Installs the project with the extras $(1).
PIP = $(BIN)/pip install --disable-pip-version-check --progress-bar off -c constraints.txt -e '.$(1)'

# What tests use of the system, as program:package of Debian; services that come with it are not to start. Where it is missing they are skipped, and fail where CI is set.
NEEDS := chromium-headless-shell:chromium-headless-shell bwrap:bubblewrap rg:ripgrep pgbouncer:pgbouncer
APT   := apt-get -o Acquire::Retries=3

# Stamps are newer than what they were made from, so a changed dependency installs again. Running needs the first alone.
$(VENV)/.ready-run: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Backchannel needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	@echo "Installing Backchannel and what it needs into $(VENV) (once, about a minute) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(call installed,$(call PIP,))
	@touch $@

$(VENV)/.ready: $(VENV)/.ready-run
	@echo "Installing the tools of development (once, about half a minute) ..."
	@$(call installed,$(call PIP,[dev]))
	@touch $@

# Ctrl-C is the gateway's to answer: a shell that died of it would make `make` report an error.
up: $(VENV)/.ready-run ## Start the gateway; ARGS="--port 18931" gives it options, STATE=folder another state folder
	@echo "Starting the gateway on the state folder $(STATE) ..."
	@trap : INT; $(BIN)/backchannel --state $(STATE) up --init $(ARGS) || { code=$$?; \
	  [ $$code -ne 1 ] || echo 'With make, options go into ARGS: make up ARGS="--port 18931"'; exit $$code; }

needs: $(VENV)/.ready # where the log is
	@missing=; for need in $(NEEDS); do command -v $${need%%:*} >/dev/null || missing="$$missing $${need##*:}"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	  echo "Not installed here, so some tests are skipped:$$missing (on Debian: sudo apt-get install$$missing)"; exit 0; fi; \
	echo "Installing$$missing with apt-get, for the tests (once, about a minute) ..."; \
	case "$$missing" in *etcd*) [ ! -d /run/systemd/system ] || systemctl --quiet mask etcd patroni ;; esac; \
	case "$$missing" in *pgbouncer*) [ ! -d /run/systemd/system ] || systemctl --quiet mask pgbouncer ;; esac; \
	$(call installed,$(APT) update && DEBIAN_FRONTEND=noninteractive $(APT) install -y --no-install-recommends $$missing) || \
	echo "The tests that use it are skipped, and fail where CI is set."

# Thousands of small databases are written: in memory, where 4 GB are free, they wait for no disk.
MEMORY := $(shell [ "$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 4000000 ] 2>/dev/null && echo /dev/shm)

# A third of the time of a test is waiting for a process or a socket: three at once keep two cores busy.
test: $(VENV)/.ready needs ## Run the tests
	$(if $(MEMORY),TMPDIR=$(MEMORY) )$(BIN)/pytest -n 3 --dist worksteal

# Values, rules, the store on SQLite and the WebSocket door.
QUICK_TESTS := tests/test_architecture.py tests/core tests/config tests/tools tests/storage \
               $(addprefix tests/gateway/test_,access.py chat.py frames.py handshake.py reference.py runs.py sessions.py)

quick: $(VENV)/.ready ## Run the tests that answer in two minutes
	$(if $(MEMORY),TMPDIR=$(MEMORY) )$(BIN)/pytest -n 3 --dist worksteal --database=sqlite -m 'not interop and not postgres' $(QUICK_TESTS)

test-postgres: $(VENV)/.ready ## Run the tests of the store and of kills on PostgreSQL; some of them are in `test` too
	$(BIN)/pytest -n 3 --dist worksteal --timeout 180 --database=postgres tests/storage tests/runtime/test_kill*.py tests/channels/test_kill*.py
	$(BIN)/pytest --timeout 180 -m interop tests/bench

# What is not there fails here, as under CI: nobody tries these to see them left out.
interop: NEEDS += patroni:patroni etcd:etcd-server linux.uml:user-mode-linux
interop: $(VENV)/.ready needs ## Try at length: clients and servers of others (MCP, OpenAI, OpenClaw, Telegram, Patroni), 10,000 messages over each channel
	@$(BIN)/python -m tests.interop.fetch
	CI=true $(BIN)/pytest -m '' tests/interop tests/cluster/test_kill_compaction.py
	SCHEMATHESIS_SECONDS=120 $(BIN)/pytest tests/gateway/test_openapi.py
	CHANNEL_MESSAGES=10000 $(BIN)/pytest --timeout 600 tests/channels/test_channel_contract.py -k many

soak: $(VENV)/.ready needs ## Kill and stop it for a minute under exchanges, commands, approvals, MCP and Telegram; FOR=600 takes longer, SEED=1 repeats one
	@$(BIN)/python -m tests.soak.soak $(if $(FOR),--seconds $(FOR)) $(if $(SEED),--seed $(SEED))

soak-cluster: $(VENV)/.ready ## Race gateways on one PostgreSQL, then kill and pause them for a minute, and while they spend a budget; FOR and SEED as for `soak`
	@$(BIN)/python -m tests.cluster.soak $(if $(FOR),--seconds $(FOR)) $(if $(SEED),--seed $(SEED))

check: $(VENV)/.ready ## Format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --num-workers 2

format: $(VENV)/.ready ## Put the code into its format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

reference: $(VENV)/.ready ## Write the pages of docs/reference and docs/internals that are made from the code
	@$(BIN)/python -m docs.build.reference
	@$(BIN)/python -m docs.build.internals

clean: ## Remove what the recipes made; the state folder, with all conversations, stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

bench: $(VENV)/.ready ## Measure it; ROWS=list,run selects, QUICK=1 measures less
	@$(BIN)/python -m bench $(if $(ROWS),--rows $(ROWS)) $(if $(QUICK),--quick)

shots: $(VENV)/.ready needs ## Write screenshots of every view of the page to shots/
	@$(BIN)/python -m tests.web.shots
