# `make serve` and `make test` work from a fresh clone. Everything that they install goes to .venv, once.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The first of these that runs: a program on the PATH may be a stub for a missing interpreter.
PYTHON ?= $(shell for python in python3.11 python3; do $$python -c '' 2>/dev/null && { echo $$python; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
LOG := $(VENV)/install.log

# $(call step,description,command): prints one line with the duration; after a failure also the last lines of the output and the likely cause.
define step
	@printf '%-52s' '$(1) ...'; begin=$$(date +%s); \
	if $(2) >$(LOG) 2>&1; then echo "$$(($$(date +%s) - begin)) s"; else \
		echo 'failed'; tail -n 8 $(LOG) >&2; \
		if grep -qi 'no space left' $(LOG); then echo 'make: the disk is full; the environment needs about 600 MB.' >&2; \
		elif grep -Eqi 'resolution|connection|network|timed out|no matching distribution' $(LOG); then \
			echo 'make: could not download; check the network and try again.' >&2; fi; \
		echo 'make: the whole output is in $(LOG).' >&2; exit 1; fi
endef

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z.\/-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: install
install: $(VENV)/.serve ## install the server and its model runtime into .venv

.PHONY: serve
serve: install ## install, fetch a model, serve on 127.0.0.1:8642 (options: make serve ARGS="--port 9000")
	@exec $(BIN)/antiphon serve $(ARGS)

.PHONY: demo
demo: install ## start a server, ask it a few real questions, stop it
	@exec $(BIN)/antiphon demo $(ARGS)

.PHONY: docs/demo.svg
docs/demo.svg: install ## draw the README's picture, three parts of the demo, again
	@$(BIN)/antiphon demo --only 1 --only 3 --only 6 --svg $@

.PHONY: docs/images
docs/images: $(VENV)/.dev ## draw the guide's pictures of the page again (needs Chromium)
	@$(BIN)/python tests/support/console/pictures.py

# With this variable set, as in container images, every process that a test starts would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

# One of the workers mostly waits for the official clients.
PYTEST = $(BIN)/python -m pytest -n $(or $(JOBS),4) --dist loadfile --max-worker-restart 0 --no-loadscope-reorder

.PHONY: test
test: check ## everything that a change must pass (ARGS=tests/wire, JOBS=1)
	@$(PYTEST) $(ARGS)

.PHONY: test-long
test-long: check ## the same, with the long tests: random tests run for minutes
	@$(PYTEST) --long -o faulthandler_timeout=3600 $(ARGS)

.PHONY: check
check: $(VENV)/.dev ## the static checks: style, types, layers
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { $(BIN)/ruff format --diff --quiet; echo 'make: run `make fix`.' >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo >$(VENV)/layers.log || { cat $(VENV)/layers.log >&2; exit 1; }
	@echo 'style, types and layers hold'

.PHONY: fix
fix: $(VENV)/.dev ## repair the style, and write the generated pages anew
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format --quiet
	@$(BIN)/python tests/support/cli/reference.py
	@$(BIN)/python tests/support/architecture.py

.PHONY: conformance
conformance: install ## official clients against a running server (MODEL=smollm2-135m-instruct)
	@$(BIN)/python conformance/run.py $(BIN)/antiphon $(or $(MODEL),smollm2-135m-instruct)

.PHONY: bench
bench: $(VENV)/.dev ## run every benchmark
	@for program in bench/*.py; do echo "== $$program"; $(BIN)/python "$$program"; done

.PHONY: bench-tables
bench-tables: $(VENV)/.dev ## make the tables of docs/reference/benchmarks.md anew (ARGS="queue types")
	@$(BIN)/python bench/common/tables.py $(ARGS)

.PHONY: lock
lock: $(VENV)/.made ## resolve pyproject.toml into requirements/ again (UPGRADE=--upgrade for newer versions)
	$(call step,installing uv,$(PIP) install uv)
	$(call step,resolving requirements/serve.txt,$(call resolve,serve,--extra local --extra speech --extra piper --extra tools --group build))
	$(call step,resolving requirements/dev.txt,$(call resolve,dev,--extra local --extra speech --extra piper --extra tools --extra webrtc --group dev --constraint requirements/serve.txt))

resolve = $(BIN)/uv pip compile pyproject.toml $(2) --output-file requirements/$(1).txt --universal --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-header $(UPGRADE)

.PHONY: clean
clean: ## remove .venv and all caches, including clients' environments; models and stored responses stay
	@rm -rf "$${XDG_CACHE_HOME:-$$HOME/.cache}/antiphon/conformance"
	@rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
	@find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Made once, and again when their sources change. A stamp is written last, so that a step that failed is repeated.

$(VENV)/.made:
	@$(or $(PYTHON),false) -c '' 2>/dev/null || { echo "make: no Python here runs$(PYTHON:%= as %); antiphon needs 3.11 or newer." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $$($(PYTHON) --version) is too old; antiphon" \
		'needs Python 3.11 or newer. If there is one, name it: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: $$(command -v $(PYTHON)) can't make environments;" \
		'on Debian and Ubuntu: sudo apt install python3-venv' >&2; exit 1; }
	@mkdir -p $(VENV)
	$(call step,making the environment $(VENV),$(PYTHON) -m venv $(VENV))
	@touch $@

$(VENV)/.serve: requirements/serve.txt pyproject.toml | $(VENV)/.made
	$(call step,installing the server and the model runtime,$(PIP) install --require-hashes -r requirements/serve.txt)
	$(call step,installing antiphon,$(PIP) install --no-deps --no-build-isolation -e .)
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.serve
	$(call step,installing the tools for tests and checks,$(PIP) install --require-hashes -r requirements/dev.txt)
	@touch $@
