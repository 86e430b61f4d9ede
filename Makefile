# `make demo` shows it; `make check` while you work, `make test` before a change lands, `make test-all` each night and before a release.
# All set up what they need; a second call costs nothing.

VENV := .venv
BIN := $(VENV)/bin
# The system's own first: it is compiled with profile-guided optimisation, one of pyenv is not and takes a third more CPU.
PYTHON ?= $(shell for p in /usr/bin/python3 python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# uv installs in a third of pip's time and CPU. It trusts the system's certificates, such as those of a company's proxy.
UV := $(BIN)/uv --system-certs
# PyPI has PySpark's source only. uv packs its 400 MB of jars into a wheel and unpacks it: without compression, 9 CPU seconds instead of 22.
UV_INSTALL := pip install --quiet --config-settings-package pyspark:--build-option=--compression=stored
PIP_INSTALL := install --quiet --disable-pip-version-check --no-compile --require-hashes -r
PYTEST := $(BIN)/python -m pytest
# Hundreds of processes start in a test run. Without compiled files each one compiles all that it imports: a job 1.3 CPU seconds.
unexport PYTHONDONTWRITEBYTECODE
# A user's Python buffers what it writes to a pipe, so the tests' commands do too.
unexport PYTHONUNBUFFERED
# Who runs what: tests/conftest.py. Four workers on two cores: a test of the whole platform waits for half of its time.
SERVER_SETS := tests/simulation tests/integration tests/spark tests/e2e
SERVERS := -n 4 --no-loadscope-reorder $(SERVER_SETS)
ARGS ?=

.PHONY: demo check before-servers test test-all test-chart test-openapi test-image test-k8s lint quick setup prepare image image-scan lock docs clean

demo: setup
	$(BIN)/fanout demo $(ARGS)

# The inner loop: lint, types, and the tests that start no server. Lint runs beside the tests.
check: setup
	@$(MAKE) --no-print-directory -j 2 lint quick

quick: $(VENV)/compiled
	$(PYTEST) -n 2 -p tests.budget tests/unit tests/properties $(ARGS)

test: before-servers
	@echo "Tests marked slow are left out: make test-all runs them. docs/faults.md says which faults they show."
	$(PYTEST) -p tests.budget -m "not slow" $(SERVERS) $(ARGS)

# What needs no server, beside the jars for what does: those mostly wait for the network.
before-servers: setup
	@$(MAKE) --no-print-directory -j 4 lint quick prepare test-chart

# The plugin measures sets with slow tests, and judges the others. More cases are generated: tests/support/thoroughness.py.
test-all: export THOROUGH = 1
test-all: before-servers test-openapi
	$(PYTEST) -p tests.budget $(SERVERS) $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: $(VENV)/locked $(VENV)/installed

$(VENV)/locked: requirements.lock
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed: apt install python3 python3-venv, or brew install python@3.13" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV) || { echo "python -m venv failed: apt install python3-venv" >&2; exit 1; }
	@echo "installing the locked dependencies (a minute or two, once) ..."
	@{ sed -n '/^uv==/,/# via/p' requirements.lock | $(BIN)/python -m pip $(PIP_INSTALL) /dev/stdin \
			&& $(UV) $(UV_INSTALL) --python $(BIN)/python --require-hashes -r requirements.lock; } \
		|| { echo "installing by uv failed. Trying pip, which also reads pip.conf and PIP_INDEX_URL ..." >&2 \
			&& sed '/^uv==/,/# via/d' requirements.lock | $(BIN)/python -m pip $(PIP_INSTALL) /dev/stdin; } \
		|| { echo "the dependencies could not be installed: see the messages above, and check the network" >&2; exit 1; }
	@touch $@

$(VENV)/installed: $(VENV)/locked pyproject.toml
	@PYTHONWARNINGS="ignore:Editable installation" $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--no-build-isolation --editable .
	@touch $@

# What the tests import when they are collected is compiled once. Otherwise up to five processes of pytest, which start together,
# compile it.
# An error of a test file is shown by the run that follows.
$(VENV)/compiled: $(VENV)/installed
	@$(PYTEST) --collect-only -qq tests/unit tests/properties tests/chart tests/openapi $(SERVER_SETS) >/dev/null 2>&1 && touch $@ || true

# The jars, and an archive of the classes that Spark starts with: a minute, which pays for the many starts of the tests.
prepare: setup
	@$(BIN)/fanout prepare

# One container image for every role, by podman or docker.
image: prepare
	@deploy/image/build $(ARGS)
	@deploy/image/sbom $(ARGS)

# Known vulnerabilities in the image, as far as they can be asked for from here.
image-scan: setup
	@deploy/image/scan $(ARGS)

# The image, and the platform of deploy/compose in containers of it. Needs podman. Builds the images as test-k8s does.
test-image: prepare
	@test -n "$$FANOUT_IMAGE" || deploy/image/is-current || $(MAKE) image ARGS=
	@deploy/image/development/build
	$(BIN)/python -m pytest tests/image $(ARGS)

# Chart and OpenAPI without ARGS: `make test ARGS="-k retry"` may select none of these tests, and pytest fails without a test.
# The chart, by the helm that deploy/helm/tools.txt pins, unpacked into a cache outside the tree. Another one: make test-chart HELM=…
TOOLS := $(HOME)/.cache/fanout/bin
HELM ?= $(TOOLS)/helm
test-chart: $(VENV)/compiled
	@test "$(HELM)" != "$(TOOLS)/helm" || $(BIN)/python deploy/helm/tools $(TOOLS)
	HELM=$(HELM) $(BIN)/python -m pytest tests/chart

# The OpenAPI document, by Redocly and Spectral, which tests/support/node_packages.py installs into a cache outside the tree.
test-openapi: $(VENV)/compiled
	$(BIN)/python -m pytest tests/openapi

# The chart on a Kubernetes cluster of this machine (docs/kubernetes-tests.md). Needs root; builds Kubernetes, an S3 server and small
# images of Kafka and Postgres once (8 minutes).
# Builds the image again if it is missing or older than the sources; FANOUT_IMAGE names another image, which is taken as it is.
test-k8s: prepare
	@$(BIN)/python deploy/helm/tools $(TOOLS)
	@$(BIN)/python -m tests.k8s.cluster build
	@test -n "$$FANOUT_IMAGE" || deploy/image/is-current || $(MAKE) image ARGS=
	@deploy/image/development/build
	@$(BIN)/python -m pytest --timeout 900 tests/k8s $(ARGS); status=$$?; $(BIN)/python -m tests.k8s.cluster down; exit $$status

# Resolve the dependencies of pyproject.toml anew, for every platform, with hashes and without naming an index; then the jars of
# deploy/jars/ivy.xml. Look at what has changed before it is committed.
lock:
	$(PYTHON) -m venv build/lock && build/lock/bin/pip install --quiet uv
	build/lock/bin/uv --system-certs pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-emit-find-links --extra local --extra dev pyproject.toml -o requirements.lock
	build/lock/bin/uv --system-certs pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-emit-find-links -c requirements.lock pyproject.toml -o deploy/image/requirements.lock
	$(MAKE) setup
	$(BIN)/python -m fanout.jvm.jars

# Write the documents that are generated from the code, and name the links that lead nowhere.
docs: setup
	$(BIN)/python -m fanout.documents.generate docs

clean:
	rm -rf build .fanout .mypy_cache .ruff_cache .pytest_cache deploy/jars/lib
