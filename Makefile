# Everything sets itself up: on a Linux machine with Python 3.11, 3.12 or 3.13, pip and make, `make demo` is enough.

# The oldest JAX that works is the one of the pins and of CI; `make test JAX=newest` tests the newest, in its own environment.
JAX ?= oldest
ifeq ($(JAX),oldest)
VENV := .venv
PYTHONS := 3.11 3.12 3.13
DEV_PINS := requirements/dev.txt
TPU_PINS := requirements/tpu.txt
else ifeq ($(JAX),newest)
VENV := .venv-newest
PYTHONS := 3.12 3.13
DEV_PINS := requirements/newest.txt
TPU_PINS := requirements/newest-tpu.txt
else
$(error JAX is '$(JAX)', but should be oldest or newest)
endif
# The first that runs: pyenv leaves names of Pythons that it does not start.
PYTHON ?= $(shell for version in $(PYTHONS); do \
	if python$$version -c '' 2> /dev/null; then echo python$$version; break; fi; done)
NEED_PYTHON = test -n '$(PYTHON)' || \
	{ echo 'make needs one of Python $(PYTHONS), and found none that runs. Name one: make PYTHON=PATH' >&2; exit 1; }
# One more than the cores that CI has: some tests wait for processes.
JOBS ?= 3
BIN := $(VENV)/bin
FIELD := $(VENV)-field
# The TPU's compiler, apart from the environment: where JAX finds it, it looks for a TPU at every start. Its wheels are for
# x86-64 only; `make test ARCH=aarch64` does what it does on other machines.
ARCH ?= $(shell uname -m)
TPU := $(CURDIR)/build/tpu$(if $(filter newest,$(JAX)),-newest)
TPU_READY := $(if $(filter x86_64,$(ARCH)),$(TPU)/.done)
# Neighbours in a file share what they compile, so workers take runs of tests.
PYTEST := $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal
# A mesh on Ray is many processes, and one serves many tests: no workers.
PYTEST_RAY := $(BIN)/python -m pytest -q
SLOW := $(PYTEST) -m 'slow and not ray' --hypothesis-profile=long --durations=10
# Most of the time goes into machine code for programs that run once: it is made quickly and left as it comes. Slow tests
# optimise it, but for those of sharding: partitioning comes before. Later versions of JAX have only one way to
# make it.
EMITTERS = $(if $(wildcard $(VENV)/lib/python*/site-packages/jax-0.10.*),\
	--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1)
# With huge pages glibc's heap takes a tenth less time, where the kernel gives them; other libraries ignore the setting.
QUICK = XLA_FLAGS="$${XLA_FLAGS:-} --xla_backend_optimization_level=0 $(EMITTERS)" \
	GLIBC_TUNABLES="$${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}"
NO_TPU := @echo '== no TPU compiler: libtpu exists for x86-64 only, and this machine is $(ARCH); its tests are left out'
# Each example takes long, so make test has few of them.
GENERATED = tests/pipeline/test_generated_programs.py $(shell grep -rl few_examples tests --include='test_*.py')
# Sorted: what is refused before Ray starts is tested before it starts.
RAY_TESTS = $(sort $(shell grep -rl 'mark\.ray' tests --include='test_*.py'))
TPU_TESTS := tests/gemm/overlap/test_compile.py tests/pricing/target/test_real_compilers.py
# Twice quiet: pip then prints errors only.
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

# Where bytecode is not written, every process that a test starts compiles all of JAX anew, for seconds.
export PYTHONDONTWRITEBYTECODE :=

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# $(call timed,NAME,COMMANDS): says what runs and how long it took. Join commands by ;, not by &&: bash's -e
# lets the first of two commands joined by && fail.
timed = @printf '== %s\n' '$(1)'; start=$$SECONDS; $(2); printf '== %s: %d s\n' '$(1)' $$((SECONDS - start))

.PHONY: help demo test test-quick test-slow test-field lint imports typecheck unit unit-jax unit-apart apart format golden bench docs pins check-pins clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | awk -F '\t' '{ printf "make %-12s %s\n", $$1, $$2 }'

demo: $(VENV)/.dev  ## Train a small GPT on 4 actors of 8 virtual devices, beside one jit
	@$(BIN)/jaxquard demo

test: $(VENV)/.dev  ## All that CI checks
	@$(MAKE) -j2 lint imports typecheck $(VENV)/.compiled
	@$(MAKE) unit

test-quick: $(VENV)/.dev  ## What to run while editing: style, and the tests of pure logic and one of each paper
	@$(MAKE) lint imports
	$(call timed,quick tests,$(QUICK) $(PYTEST) --quick -m 'not slow and not ray')

test-slow: $(VENV)/.dev $(TPU_READY)  ## The tests marked slow, with many more generated examples
	$(call timed,slow tests of sharding,$(QUICK) $(SLOW) tests/intraop)
	$(call timed,slow tests,$(SLOW) --ignore=tests/intraop)
	$(call timed,many generated examples,$(QUICK) $(PYTEST) -m 'hypothesis and not slow' --hypothesis-profile=many $(GENERATED))
	$(call timed,slow tests on Ray,$(PYTEST_RAY) -m 'slow and ray' --durations=10 $(RAY_TESTS))
ifeq ($(ARCH),x86_64)
	$(call timed,slow tests with the TPU compiler,PYTHONPATH=$(TPU) $(PYTEST_RAY) -m slow $(TPU_TESTS))
else
	$(NO_TPU)
endif

# Public models want other packages, and some of these other versions: they get an environment of their own.
test-field: $(FIELD)/.done  ## Public models of Flax, Equinox, Haiku, Keras and penzai as pipelines
	$(call timed,public models,$(QUICK) $(FIELD)/bin/python -m pytest -q tests/field)

lint: $(VENV)/.dev  ## Check format and style
	$(call timed,ruff,$(BIN)/ruff check --quiet .; $(BIN)/ruff format --quiet --diff .)

imports: $(VENV)/.dev  ## Check that imports point one way
	$(call timed,import-linter,$(BIN)/lint-imports --no-logo --no-cache)

typecheck: $(VENV)/.dev  ## Check types
	$(call timed,pyrefly,$(BIN)/pyrefly check --output-format=min-text)

# Tests on Ray wait more than they compute: those of JAX alone run beside them, at a lower priority, since tests on Ray look
# at the clock. The TPU's compiler, which is a large download, comes while tests run.
unit: $(VENV)/.dev  ## The tests alone
	@$(MAKE) -j2 unit-jax unit-apart

unit-jax: $(VENV)/.dev
	$(call timed,pytest,$(QUICK) nice -n 5 $(PYTEST) -m 'not slow and not ray' --durations=10)

unit-apart: $(VENV)/.dev
	@log=$$(mktemp); status=0; $(MAKE) apart > $$log 2>&1 || status=$$?; cat $$log; rm -f $$log; exit $$status

apart:
	$(call timed,pytest on Ray,$(QUICK) $(PYTEST_RAY) -m 'not slow and ray' --durations=10 $(RAY_TESTS))
ifeq ($(ARCH),x86_64)
	@$(MAKE) $(TPU_READY)
	$(call timed,pytest with the TPU compiler,PYTHONPATH=$(TPU) $(PYTEST_RAY) -m 'not slow' $(TPU_TESTS))
else
	$(NO_TPU)
endif

format: $(VENV)/.dev  ## Rewrite the code in its one format
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format .

golden: $(VENV)/.dev  ## Rewrite the golden texts; read the difference before committing
	$(call timed,golden texts,$(PYTEST) -m 'not slow and not ray' --update-golden)

bench: $(VENV)/.dev  ## Print the ratios of benchmarks/, or of some: make bench BENCH="one_device planning_cost"
	@$(BIN)/python -m benchmarks.run $(BENCH)

docs: $(VENV)/.docs  ## Build docs/_build/html, running its pages
	$(call timed,sphinx,$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html)
	@echo 'Read docs/_build/html/index.html'

pins: export LC_ALL := C
pins:  ## Choose the newest versions anew and write requirements/*.txt; also with JAX=newest
	@$(NEED_PYTHON)
	@echo '== choosing versions for $(DEV_PINS)'
	@$(PYTHON) -m venv --clear build/pins
	@sed -E $(if $(filter newest,$(JAX)),'s/^(jax|jaxlib)==.*/\1/') requirements/dev.in > build/dev.in
	@build/pins/bin/pip install -qq -r build/dev.in
	@build/pins/bin/pip freeze | sort > build/dev
	@sed -i '2,$$d' $(DEV_PINS)
	@cat build/dev >> $(DEV_PINS)
ifeq ($(JAX),oldest)
	@build/pins/bin/pip install -qq -c build/dev -r requirements/docs.in
	@build/pins/bin/pip freeze | sort > build/docs
	@sed -i '2,$$d' requirements/docs.txt
	@comm -13 build/dev build/docs >> requirements/docs.txt
endif
	@$(MAKE) check-pins

# glibc 2.28 is that of Debian 10; pip takes each tag by itself.
TAGS := manylinux_2_17 manylinux2014 manylinux_2_26 manylinux_2_27 manylinux_2_28
check-pins:  ## Check that there are wheels of the pinned versions for each Python, on x86-64 and on aarch64
	@$(NEED_PYTHON)
	@for version in $(PYTHONS); do for arch in x86_64 aarch64; do \
		echo "== $(DEV_PINS) for Python $$version on $$arch"; \
		$(PYTHON) -m pip install -qq --dry-run --no-deps --only-binary :all: --target build/none --python-version $$version \
			$$(printf -- "--platform %s_$$arch " $(TAGS)) -r $(DEV_PINS); done; done

clean:  ## Remove the environment and all that was made
	@rm -rf .venv .venv-newest .venv-field .venv-newest-field build dist docs/_build docs/jupyter_execute
	@rm -rf .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -prune -exec rm -rf {} +

# A stamp is out of date when the pins change; the environment then follows them.
$(VENV)/.dev: $(DEV_PINS) pyproject.toml
	@$(NEED_PYTHON)
	@echo '== setting up $(VENV) with $(PYTHON) (about a minute, once)'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --no-compile -r $(DEV_PINS)
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

# Bytecode, made once where every worker of the tests would make it: of all that tests import.
$(VENV)/.compiled: $(VENV)/.dev
	$(call timed,bytecode,log=$$($(BIN)/python -m pytest -q --collect-only 2>&1) || { tail -n 30 <<< "$$log"; exit 1; })
	@touch $@

$(FIELD)/.done: $(DEV_PINS) requirements/field.txt pyproject.toml
	@$(NEED_PYTHON)
	@echo '== setting up $(FIELD) with $(PYTHON) (minutes, once)'
	@$(PYTHON) -m venv $(FIELD)
	@$(FIELD)/bin/python -m pip -qq install --no-compile -r $(DEV_PINS)
	@$(FIELD)/bin/python -m pip -qq install --no-deps --no-build-isolation -e .
	@$(FIELD)/bin/python -m pip -qq install --no-compile -c $(DEV_PINS) -r requirements/field.txt
	@touch $@

$(VENV)/.docs: $(VENV)/.dev requirements/docs.txt
	@echo '== adding what the docs need to $(VENV)'
	@$(PIP) install -c $(DEV_PINS) -r requirements/docs.txt
	@touch $@

$(TPU)/.done: $(VENV)/.dev $(TPU_PINS)
	@echo '== adding the TPU compiler in build (half a minute, once)'
	@$(PIP) install --no-deps --upgrade --target $(TPU) -r $(TPU_PINS)
	@touch $@
