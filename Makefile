# Everything a developer types. `make` alone lists the targets; the first one to run makes .venv and fills it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := python -m pip --quiet --disable-pip-version-check install
META   := pyproject.toml weft/version.py

OLDEST := .venv-oldest

# Front ends are tested beside the library that they are for, which may pin what others do not.
TORCH    ?= torch==2.13.0
PYTENSOR ?= pytensor==3.0.7

# What depends on the CPU or on LLVM: kernels, how they are made and linked, and the native code of programs and threads.
CPU_TESTS  := tests/test_engine.py tests/test_memory_plans.py tests/test_matmul_kernels.py
LLVM_TESTS := tests/test_numba.py tests/test_llvm_versions.py tests/test_engine.py tests/test_levels.py

# Given on the command line: `make test ARGS="-k softmax"`, `make bench ARGS="gelu_4M --python jax=../jax/bin/python"`.
ARGS ?=

# Which of examples/*.py `make demo` runs.
DEMO ?= train_mlp

.DEFAULT_GOAL := help
.PHONY: help demo test test-full test-levels test-browser test-cpus test-llvm test-torch test-pytensor test-pytensor-newest lint format bench peers oldest clean
.DELETE_ON_ERROR:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.run ## train a small network on drawn digits (some seconds); DEMO=text, DEMO=diffusion, ... other examples
	@$(BIN)/weft run examples/$(DEMO).py $(ARGS)

test: $(VENV)/.dev ## the tests that must always pass (under 10 minutes on two cores)
	@$(BIN)/python -m pytest -q $(ARGS)

test-full: $(VENV)/.dev ## all tests, the slow ones included, at the lowest and the highest LLVM level
	@WEFT_LLVM_LEVEL=0 WEFT_THREADS=1 $(BIN)/python -m pytest -q -m "" --hypothesis-profile=full $(ARGS)
	@WEFT_LLVM_LEVEL=3 WEFT_THREADS=2 $(BIN)/python -m pytest -q -m "" $(ARGS)

test-levels: $(VENV)/.dev ## some of the tests at the level of optimisation that users have
	@WEFT_LLVM_LEVEL=2 $(BIN)/python -m pytest -q $(CPU_TESTS) $(ARGS)

test-browser: $(VENV)/.dev ## the pages of `weft explain` in a headless Chromium, if there is one
	@$(BIN)/python -m pytest -q -m browser -n 0 tests/browser $(ARGS)

test-cpus: $(VENV)/.dev ## the same bits for CPUs without AVX-512 and without AVX2, and some of the tests there
	@WEFT_LLVM_LEVEL=0 WEFT_THREADS=1 WEFT_CACHE_DIR= $(BIN)/python -m tests.bits WEFT_CPU=x86-64-v3 WEFT_CPU=x86-64-v2
	@for cpu in x86-64-v3 x86-64-v2; do \
	    export WEFT_CPU=$$cpu WEFT_THREADS=7; \
	    if $(BIN)/weft doctor | grep "this machine's CPU lacks"; then continue; fi; \
	    $(BIN)/python -m pytest -q $(CPU_TESTS) || exit 1; \
	done

test-llvm: $(VENV)/.dev $(OLDEST)/.dev ## the same bits with the oldest LLVM as with ours, some of the tests there, and Numba
	@WEFT_THREADS=1 WEFT_CACHE_DIR= $(BIN)/python -m tests.bits $(OLDEST)/bin/python
	@$(OLDEST)/bin/python -m pytest -q $(LLVM_TESTS)

test-torch: .venv-torch/.dev ## programs for PyTorch: torch.compile and torch.export
	@.venv-torch/bin/python -m pytest -q tests/frontends/test_torch_*.py $(ARGS)

test-pytensor: .venv-pytensor/.dev ## programs for PyTensor
	@.venv-pytensor/bin/python -m pytest -q tests/frontends/test_pytensor_*.py $(ARGS)

test-pytensor-newest: .venv-pytensor-newest/.dev ## the same with the newest PyTensor, for a Python from 3.12 on: make PYTHON=python3.12 ...
	@.venv-pytensor-newest/bin/python -m pytest -q tests/frontends/test_pytensor_*.py $(ARGS)

lint: $(VENV)/.dev ## style, formatting and types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

format: $(VENV)/.dev ## rewrite the sources in the house style
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: $(VENV)/.run ## time Weft beside the peers that are installed, and write benchmarks/RESULTS.md
	@$(BIN)/weft bench --write benchmarks/RESULTS.md $(ARGS)

peers: $(VENV)/.dev ## install MLX, which some tests and benchmarks compare with
	@echo "installing mlx into $(VENV)"
	@$(BIN)/$(PIP) -e '.[peers]'

oldest: $(OLDEST)/.dev ## make an environment with the oldest LLVM that Weft works with, and the Numba that asks for it

clean: ## remove the environment, the caches and what was built
	@rm -rf $(VENV) $(OLDEST) .venv-torch .venv-pytensor .venv-pytensor-newest build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian and Ubuntu ship `venv` without the part that brings pip (python3-venv), so there are two ways and one explanation.
$(VENV)/.made $(OLDEST)/.made .venv-torch/.made .venv-pytensor/.made .venv-pytensor-newest/.made:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not on the PATH; say which one: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Weft needs Python 3.11 or later, and $(PYTHON) is $$($(PYTHON) -V); say which one: make PYTHON=python3.12 ..."; exit 1; }
	@echo "making $(@D) with $$($(PYTHON) -V)"
	@rm -rf $(@D)
	@{ $(PYTHON) -m venv $(@D) \
	    || { $(PYTHON) -m venv --clear --without-pip $(@D) && $(PYTHON) -m pip --python $(@D)/bin/python install pip; } \
	    || { rm -rf $(@D) && $(PYTHON) -m virtualenv $(@D); }; } >.venv.log 2>&1 \
	    || { cat .venv.log; rm -rf $(@D) .venv.log; echo; \
	         echo "$(PYTHON) cannot make a virtual environment. On Debian or Ubuntu: apt install python3-venv, then try again."; exit 1; }
	@rm -f .venv.log
	@touch $@

$(VENV)/.run: $(VENV)/.made $(META)
	@echo "installing weft into $(VENV)"
	@$(BIN)/$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.made $(META)
	@echo "installing weft, its tests and its linters into $(VENV)"
	@$(BIN)/$(PIP) -e '.[test,lint]'
	@touch $(VENV)/.run $@

$(OLDEST)/.dev: $(OLDEST)/.made $(META)
	@echo "installing weft, its tests, llvmlite 0.45 and numba 0.62 into $(OLDEST)"
	@$(OLDEST)/bin/$(PIP) -e '.[test]' 'llvmlite==0.45.*' 'numba==0.62.*'
	@touch $@

.venv-torch/.dev: .venv-torch/.made $(META)
	@echo "installing weft, its tests, $(TORCH) and transformers into $(@D)"
	@$(@D)/bin/$(PIP) '$(TORCH)'
	@$(@D)/bin/$(PIP) -e '.[test,torch]' transformers
	@touch $@

.venv-pytensor/.dev: .venv-pytensor/.made $(META)
	@echo "installing weft, its tests and $(PYTENSOR) into $(@D)"
	@$(@D)/bin/$(PIP) -e '.[test,pytensor]' '$(PYTENSOR)'
	@touch $@

.venv-pytensor-newest/.dev: .venv-pytensor-newest/.made $(META)
	@echo "installing weft, its tests and the newest PyTensor into $(@D)"
	@$(@D)/bin/$(PIP) --upgrade -e '.[test,pytensor]' pytensor
	@touch $@
