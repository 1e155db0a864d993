# Everything sets itself up: on a machine with python3.11, pip and make, `make demo` is enough.

PYTHON ?= python3.11
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
# The TPU's compiler, apart from the environment: where JAX finds it, it looks for a TPU at every start.
TPU := $(CURDIR)/build/tpu
# Neighbours in a file share what they compile, so workers take runs of tests.
PYTEST := $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal
# A mesh on Ray is many processes, and one serves many tests: no workers.
PYTEST_RAY := $(BIN)/python -m pytest -q
SLOW := $(PYTEST) -m 'slow and not ray' --hypothesis-profile=long --durations=10
# Most of the time goes into machine code for programs that run once: it is made quickly and left as it comes. Slow tests
# optimise it, but for those of sharding: how a program is cut comes before. Later versions of JAX have only one way to
# make it.
EMITTERS = $(if $(wildcard $(VENV)/lib/python*/site-packages/jax-0.10.*),--xla_cpu_use_fusion_emitters=false)
QUICK = XLA_FLAGS="$${XLA_FLAGS:-} --xla_backend_optimization_level=0 $(EMITTERS)"
TPU_TESTS := tests/gemm/overlap/test_compile.py
# Twice quiet: pip then prints errors only.
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# $(call timed,NAME,COMMANDS): says what runs and how long it took. Join commands by ;, not by &&: bash's -e
# lets the first of two commands joined by && fail.
timed = @printf '== %s\n' '$(1)'; start=$$SECONDS; $(2); printf '== %s: %d s\n' '$(1)' $$((SECONDS - start))

.PHONY: help demo test test-slow lint imports typecheck unit format golden bench docs pins clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | awk -F '\t' '{ printf "make %-12s %s\n", $$1, $$2 }'

demo: $(VENV)/.dev  ## Train a small GPT on 4 actors of 8 virtual devices, beside one jit
	@$(BIN)/jaxquard demo

test: $(VENV)/.dev  ## All that CI checks
	@$(MAKE) -j2 lint imports typecheck $(TPU)/.done
	@$(MAKE) unit

test-slow: $(VENV)/.dev $(TPU)/.done  ## The tests marked slow, with many more generated examples
	$(call timed,slow tests of sharding,$(QUICK) $(SLOW) tests/intraop)
	$(call timed,slow tests,$(SLOW) --ignore=tests/intraop)
	$(call timed,slow tests on Ray,$(PYTEST_RAY) -m 'slow and ray' --durations=10)
	$(call timed,slow tests with the TPU compiler,PYTHONPATH=$(TPU) $(PYTEST_RAY) -m slow $(TPU_TESTS))

lint: $(VENV)/.dev  ## Check format and style
	$(call timed,ruff,$(BIN)/ruff check --quiet .; $(BIN)/ruff format --quiet --diff .)

imports: $(VENV)/.dev  ## Check that imports point one way
	$(call timed,import-linter,$(BIN)/lint-imports --no-logo --no-cache)

typecheck: $(VENV)/.dev  ## Check types
	$(call timed,pyrefly,$(BIN)/pyrefly check --output-format=min-text)

# Tests on Ray look at the clock, so nothing runs beside them.
unit: $(VENV)/.dev $(TPU)/.done  ## The tests alone
	$(call timed,pytest,$(QUICK) $(PYTEST) -m 'not slow and not ray' --durations=10)
	$(call timed,pytest on Ray,$(QUICK) $(PYTEST_RAY) -m 'not slow and ray' --durations=10)
	$(call timed,pytest with the TPU compiler,PYTHONPATH=$(TPU) $(PYTEST_RAY) -m 'not slow' $(TPU_TESTS))

format: $(VENV)/.dev  ## Rewrite the code in its one format
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format .

golden: $(VENV)/.dev  ## Rewrite the golden texts; read the difference before committing
	$(call timed,golden texts,$(PYTEST) -m 'not slow and not ray' --update-golden)

bench: $(VENV)/.dev  ## Print the ratios of benchmarks/, or of some: make bench BENCH="tiny_mlp"
	@$(BIN)/python -m benchmarks.run $(BENCH)

docs: $(VENV)/.docs  ## Build docs/_build/html, running its pages
	$(call timed,sphinx,$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html)
	@echo 'Read docs/_build/html/index.html'

pins: export LC_ALL := C
pins:  ## Choose the newest versions anew and write requirements/*.txt
	@echo '== choosing versions'
	@$(PYTHON) -m venv --clear build/pins
	@build/pins/bin/pip install -qq -r requirements/dev.in
	@build/pins/bin/pip freeze | sort > build/dev
	@build/pins/bin/pip install -qq -c build/dev -r requirements/docs.in
	@build/pins/bin/pip freeze | sort > build/docs
	@sed -i '2,$$d' requirements/dev.txt requirements/docs.txt
	@cat build/dev >> requirements/dev.txt
	@comm -13 build/dev build/docs >> requirements/docs.txt

clean:  ## Remove the environment and all that was made
	@rm -rf $(VENV) build dist docs/_build docs/jupyter_execute
	@rm -rf .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -prune -exec rm -rf {} +

# A stamp is out of date when the pins change; the environment then follows them.
$(VENV)/.dev: requirements/dev.txt pyproject.toml
	@command -v $(PYTHON) > /dev/null || { echo 'make needs $(PYTHON); or name another: make PYTHON=python3.12'; exit 1; }
	@echo '== setting up $(VENV) (about a minute, once)'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --no-compile -r requirements/dev.txt
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.docs: $(VENV)/.dev requirements/docs.txt
	@echo '== adding what the docs need to $(VENV)'
	@$(PIP) install -c requirements/dev.txt -r requirements/docs.txt
	@touch $@

$(TPU)/.done: $(VENV)/.dev requirements/tpu.txt
	@echo '== adding the TPU compiler in build/tpu (half a minute, once)'
	@$(PIP) install --no-deps --upgrade --target $(TPU) -r requirements/tpu.txt
	@touch $@
