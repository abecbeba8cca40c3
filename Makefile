# Everything that a checkout can do. `make` alone lists it.

PYTHON ?= python3
CARGO ?= cargo
# Identifiers to set up, split by commas or spaces; all when empty.
MODELS ?=
export MODELS

VENV_PYTHON := .venv/bin/python
BINARY := target/release/dichroic

.DEFAULT_GOAL := help
.PHONY: help setup models build demo serve test test-rust test-scripts test-deploy fmt lint bench lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  MODELS=alpha-4o-mini limits any of them to the named models.'

setup: ## Python environment, ONNX Runtime, base weights, models
	@$(PYTHON) scripts/setup

models: setup ## build again what changed in recipes, deltas or conversion code

build: ## set-up, then the release binary
	@$(PYTHON) scripts/setup --require cargo cc
	@$(CARGO) build --release --locked

demo: build ## start the server, ask all four operations, check the answers
	@$(VENV_PYTHON) scripts/demo $(BINARY)

serve: build ## serve on 127.0.0.1:8080 with a fresh key
	@$(VENV_PYTHON) scripts/serve $(BINARY)

test: ## set-up, then every check and test
	@$(PYTHON) scripts/setup --require cargo cc
	@$(MAKE) --no-print-directory lint test-rust test-scripts test-deploy
	@echo 'make test: every check passed.'

test-rust: ## unit, integration, architecture, golden and doc tests of the server
	@$(CARGO) test --locked --no-run
	@$(CARGO) test --locked --quiet

test-scripts: ## tests of set-up, of the conversions, and of the running server
	@$(CARGO) build --locked --quiet
	@$(VENV_PYTHON) -m pytest -q scripts/tests --ignore-glob "*/test_deploy*.py"

test-deploy: ## tests of the Helm chart, the alert rules, limits in Redis and all else in deploy/
	@$(PYTHON) scripts/deploy_tools
	@$(CARGO) build --locked --quiet
	@.venv-deploy/bin/python -m pytest -q scripts/tests/test_deploy*.py

fmt: ## format the Rust code
	@$(CARGO) fmt

lint: ## formatting and clippy, warnings denied
	@$(CARGO) fmt --check
	@$(CARGO) clippy --all-targets --locked -- -D warnings

bench: build ## criterion benchmarks
	@$(CARGO) bench --locked

lock: ## write each requirements.lock anew from its requirements.in
	@$(PYTHON) scripts/lock

clean: ## remove what was built here; downloads stay in the cache
	@rm -rf target .venv .venv-deploy runtime models/*/build
