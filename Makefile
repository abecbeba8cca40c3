# Everything that a checkout can do. `make` alone lists it.

PYTHON ?= python3
CARGO ?= cargo
# Identifiers to set up, split by commas or spaces; all when empty.
MODELS ?=
export MODELS
# cuda: set up ONNX Runtime with CUDA and build for GPUs too; `make serve` then serves on a GPU.
DEVICE ?=
export DEVICE
# For `make bundle`: a minisign secret key and, if it has one, a file with its password.
SIGNING_KEY ?=
SIGNING_PASSWORD_FILE ?=
export SIGNING_KEY SIGNING_PASSWORD_FILE
# Options of the comparison with other servers, such as --quick or --only text.
PEERS ?=

# Where every target and script looks for what is built, whatever a variable or a configuration of cargo's names.
override CARGO_TARGET_DIR := $(CURDIR)/target
export CARGO_TARGET_DIR

VENV_PYTHON := .venv/bin/python
BINARY := target/release/dichroic
# A package of its own, so that nothing of it is built with the server.
EXAMPLE := --manifest-path examples/rust/Cargo.toml

.DEFAULT_GOAL := help
# Several targets write the same program, with other features.
.NOTPARALLEL:
.PHONY: help setup models build bundle notices demo serve test test-rust test-scripts test-clients test-models
.PHONY: test-deploy fmt lint bench bench-compare gauge bench-peers bench-profile bench-gpu lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  MODELS=alpha-4o-mini limits set-up, demo and bundle to the named models; DEVICE=cuda is for GPUs.'

setup: ## Python environment, ONNX Runtime, base weights, models
	@$(PYTHON) scripts/setup

models: setup ## build again what changed in recipes, deltas or conversion code

build: ## set-up, then the release binary
	@$(PYTHON) scripts/setup --require cargo cc
	@$(CARGO) build --release --locked

bundle: ## one tar for machines without a network; SIGNING_KEY=minisign.key signs it
	@$(PYTHON) scripts/setup --require cargo cc
	@$(CARGO) build --release --locked --no-default-features
	@$(VENV_PYTHON) scripts/bundle $(BINARY)

notices: setup ## write THIRD_PARTY.md: what others made of a bundle, and under which licence
	@$(VENV_PYTHON) scripts/bundle --notices

demo: build ## start the server, ask all four operations, check the answers
	@$(VENV_PYTHON) scripts/demo $(BINARY)

serve: build ## serve on 127.0.0.1:8080 with a fresh key
	@$(VENV_PYTHON) scripts/serve $(BINARY)

test: ## set-up, then every check and test but those of test-clients and test-models
	@$(PYTHON) scripts/setup --require cargo cc node
	@$(PYTHON) scripts/deploy_tools
	@$(MAKE) --no-print-directory lint test-rust test-scripts test-deploy
	@echo 'make test: every check passed; what was skipped stands above, with its reason.'

test-rust: ## unit, integration, architecture, golden and doc tests of the server
	@$(CARGO) test --locked --no-run
	@$(CARGO) test --locked --quiet

test-scripts: ## tests of set-up, of the conversions, and of the running server
	@$(CARGO) build --locked --quiet
	@$(VENV_PYTHON) -m pytest -q -rs scripts/tests --ignore-glob "*/test_deploy*.py" --ignore-glob "*/test_clients*.py" \
		--ignore scripts/tests/test_playground.py --ignore scripts/tests/test_optimum.py

test-clients: ## linter, generated clients and schemathesis on the OpenAPI document (some minutes)
	@$(PYTHON) scripts/setup --require cargo cc
	@$(PYTHON) scripts/client_tools
	@$(CARGO) build --locked --quiet
	@.venv-clients/bin/python -m pytest -q -rs scripts/tests/test_clients*.py

# Not in `make test`: its packages, PyTorch among them, are 6 GB. The tests themselves take a minute.
test-models: ## tests of models that Hugging Face's Optimum has exported (6 GB of packages)
	@$(PYTHON) scripts/setup --require cargo cc
	@$(PYTHON) scripts/export_tools
	@$(CARGO) build --locked --quiet
	@.venv-models/bin/python -m pytest -q --disable-warnings scripts/tests/test_optimum.py

# The server of a bundle, without default features, is put aside; the other tests have the usual one. Only this package
# is compiled twice: no dependency has other features with or without them.
test-deploy: ## tests of the Helm chart, the alert rules, the bundle, limits in Redis, the playground in a browser
	@$(PYTHON) scripts/deploy_tools
	@$(CARGO) build --locked --quiet --no-default-features
	@install -D target/debug/dichroic target/bundled/dichroic
	@$(CARGO) build --locked --quiet
	@.venv-deploy/bin/python -m pytest -q -rs scripts/tests/test_deploy*.py
	@$(VENV_PYTHON) -m pytest -q -rs scripts/tests/test_playground.py

fmt: ## format the Rust code
	@$(CARGO) fmt
	@$(CARGO) fmt $(EXAMPLE)

lint: ## formatting and clippy, warnings denied
	@$(CARGO) fmt --check
	@$(CARGO) fmt --check $(EXAMPLE)
	@$(CARGO) clippy --all-targets --locked -- -D warnings
	@$(CARGO) clippy --bins --locked --no-default-features -- -D warnings
	@$(CARGO) clippy --quiet $(EXAMPLE) --target-dir target/examples --locked -- -D warnings

bench: build ## criterion benchmarks
	@$(CARGO) bench --locked

bench-compare: ## the last benchmarks beside the committed medians
	@$(VENV_PYTHON) scripts/peers/baseline.py $(BASELINE)

gauge: build
	@$(CARGO) build --release --locked --quiet --example gauge

bench-peers: gauge ## beside llama.cpp, onnxruntime-genai and FastAPI on the same cores
	@$(VENV_PYTHON) scripts/bench_peers $(PEERS)

bench-profile: gauge ## where the time of a pass and of a request goes
	@$(VENV_PYTHON) scripts/peers/step_profile.py

bench-gpu: ## what the models do on a GPU; it needs one
	@DEVICE=cuda $(PYTHON) scripts/setup --require cargo cc
	@$(CARGO) build --release --locked --quiet --example gauge
	@$(VENV_PYTHON) scripts/bench_gpu

lock: ## write each requirements.lock anew from its requirements.in
	@$(PYTHON) scripts/lock

clean: ## remove what was built here; downloads stay in the cache
	@rm -rf target .venv .venv-clients .venv-deploy .venv-models .venv-peers runtime models/*/build models/*/build-cuda
