# Everything a newcomer needs: `make demo` and `make test`. Both create .venv, install and build on first use.
#
#   make demo    train a small language model on four simulated NPUs: 2 share each matrix, 2 the layers
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
INSTALLED := $(VENV)/installed
NO_NPU := $(VENV)/no-torch-npu

# deepspeed and ninja must be found by name. A GPU in this machine is not used: torch refuses two kinds of device.
RUN_ENV := PATH="$(abspath $(BIN)):$$PATH" CUDA_VISIBLE_DEVICES=

.PHONY: help demo test lint clean build

help:
	@sed -n '/^PYTHON/q; s/^# \{0,1\}//p' Makefile

demo: build
	@test ! -e $(NO_NPU) || { cat $(NO_NPU); exit 1; }
	$(RUN_ENV) NPU_SIM=4 OMP_NUM_THREADS=1 deepspeed --num_gpus 4 hf_integration/train.py \
	    --deepspeed ds_configs/presets/zero1.json --config_name tiny-llama \
	    --tensor_model_parallel_size 2 --pipeline_model_parallel_size 2 --pipeline_timeline 40 \
	    --max_steps 50 --per_device_train_batch_size 16 --gradient_accumulation_steps 4 --block_size 64 \
	    --learning_rate 8e-3 --lr_scheduler_type cosine --warmup_steps 5 --max_eval_blocks 64 \
	    --per_device_eval_batch_size 16 --sample_tokens 48 --output_dir outputs/demo $(DEMO_ARGS)

test: build
	$(RUN_ENV) python -m pytest --durations=10 $(PYTEST_ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

build: $(INSTALLED)
	@test -e $(NO_NPU) || $(BIN)/npu-plugins simulator build > /dev/null

clean:
	@test ! -x $(BIN)/npu-plugins || $(BIN)/npu-plugins simulator clean
	rm -rf $(VENV) outputs build *.egg-info .pytest_cache .mypy_cache .ruff_cache

$(INSTALLED): requirements/tested.txt requirements/install.sh setup.py
	PYTHON=$(PYTHON) TORCH_INDEX=$(TORCH_INDEX) requirements/install.sh $(VENV)
	@touch $@
