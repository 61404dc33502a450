# Everything a newcomer needs: `make demo` and `make test`. Both create .venv, install and build on first use.
#
#   make demo    train a small language model on two simulated NPUs
#   make test    run all tests
#   make lint    ruff and mypy
#   make clean   delete .venv, outputs and what the simulator built
#
# Variables:
#   PYTHON       Python 3.10 or newer to make .venv from                      (default: python3)
#   TORCH_INDEX  package index to take torch from, for example PyTorch's index of CPU wheels, which are a tenth
#                of the size of the CUDA wheels that the default index has for Linux x86_64 (default: pip's own)
#   DEMO_ARGS    more arguments for hf_integration/train.py, for example DEMO_ARGS='--max_steps 20'
#   PYTEST_ARGS  more arguments for pytest, for example PYTEST_ARGS='tests/simulator -x'

PYTHON ?= python3
TORCH_INDEX ?=
DEMO_ARGS ?=
PYTEST_ARGS ?=

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALLED := $(VENV)/installed
TESTED := requirements/tested.txt
NPU_NEEDED := $(VENV)/no-torch-npu

# torch: DeepSpeed's setup imports it, hence first. DS_BUILD_OPS=0: DeepSpeed compiles operators when they are used.
# TORCH_DEVICE_BACKEND_AUTOLOAD=0: nothing that is installed here may import torch_npu, which wants an NPU.
INSTALL_ENV := DS_BUILD_OPS=0 TORCH_DEVICE_BACKEND_AUTOLOAD=0

# deepspeed and ninja must be found by name. A GPU in this machine is not used: torch refuses two kinds of device.
RUN_ENV := PATH="$(abspath $(BIN)):$$PATH" CUDA_VISIBLE_DEVICES=

.PHONY: help demo test lint clean build

help:
	@sed -n '/^PYTHON/q; s/^# \{0,1\}//p' Makefile

demo: build
	@test ! -e $(NPU_NEEDED) || { cat $(NPU_NEEDED); exit 1; }
	$(RUN_ENV) NPU_SIM=2 OMP_NUM_THREADS=1 deepspeed --num_gpus 2 hf_integration/train.py \
	    --deepspeed ds_configs/presets/zero2.json --config_name tiny-llama --bf16 \
	    --max_steps 300 --per_device_train_batch_size 8 --block_size 128 \
	    --learning_rate 4e-3 --lr_scheduler_type cosine --warmup_steps 10 --output_dir outputs/demo $(DEMO_ARGS)

test: build
	$(RUN_ENV) python -m pytest --durations=10 $(PYTEST_ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

build: $(INSTALLED)
	@test -e $(NPU_NEEDED) || $(BIN)/npu-plugins simulator build > $(VENV)/simulator-path

clean:
	@test ! -x $(BIN)/npu-plugins || $(BIN)/npu-plugins simulator clean
	rm -rf $(VENV) outputs build *.egg-info .pytest_cache .mypy_cache .ruff_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "make: $(PYTHON) is $$($(PYTHON) -V 2>&1), but Python 3.10 or newer is needed: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): $(TESTED) setup.py pyproject.toml Makefile | $(BIN)/python
	$(PIP) install -q $$(grep -E '^(setuptools|wheel)==' $(TESTED))
	$(PIP) install $(TORCH_INDEX:%=--index-url %) $$(grep '^torch==' $(TESTED))
	grep -v '^torch_npu' $(TESTED) > $(VENV)/tested-without-npu.txt
	$(INSTALL_ENV) $(PIP) install --no-build-isolation -r $(VENV)/tested-without-npu.txt
	@rm -f $(NPU_NEEDED)
	grep '^torch_npu' $(TESTED) > $(VENV)/tested-npu.txt
	$(PIP) install -r $(VENV)/tested-npu.txt && $(BIN)/python -c \
	    'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch_npu") is None)' || \
	    echo "torch_npu has no wheel for $$($(BIN)/python -V) on $$(uname -sm): what needs an NPU is left out." \
	    | tee $(NPU_NEEDED)
	$(INSTALL_ENV) $(PIP) install -q --no-build-isolation --no-deps -e .
	@touch $@
