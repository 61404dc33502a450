"""One training run from its arguments to its closing report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

import datasets
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase, set_seed

from hf_integration.arguments import (
    BYTE_TOKENIZER,
    ModelArguments,
    ProgramArguments,
    parse_arguments,
)
from hf_integration.byte_tokenizer import build_byte_tokenizer
from hf_integration.data import DataArguments, check_packing, load_data
from hf_integration.data.chat import set_chat_template
from hf_integration.device import describe_device, platform_label, ranks_in_words
from hf_integration.dry_run import dry_run
from hf_integration.errors import TrainingInputError
from hf_integration.lora import describe
from hf_integration.models import (
    build_model,
    build_skeleton,
    longest_sequence,
    model_config,
    resolve_block_size,
)
from hf_integration.plot import plot_losses
from hf_integration.preflight import compare_inputs
from hf_integration.report import RunFiles, sample_continuation, summary
from hf_integration.sampling import pipeline_continuation
from hf_integration.timeline import PICTURE_NAME
from hf_integration.trainer import CausalLMTrainer

# Tokens per sequence where --block_size is not given.
DEFAULT_LENGTH = MappingProxyType({"pretrain": 256, "sft": 1024})


def load_tokenizer(args: ModelArguments, data: DataArguments) -> PreTrainedTokenizerBase:
    """Return the tokenizer that ``args`` name: a directory's, the model's own, or the byte tokenizer.

    It gets the chat template that ``data`` names, if it names one.

    Raises:
        TrainingInputError: there is no tokenizer, or the template is none.
    """
    tokenizer = find_tokenizer(args, answers_end=data.task == "sft")
    if data.chat_template is not None:
        set_chat_template(tokenizer, Path(data.chat_template))
    return tokenizer


def find_tokenizer(args: ModelArguments, answers_end: bool) -> PreTrainedTokenizerBase:
    """Return the tokenizer that ``args`` name; ``answers_end``: a text may hold end-of-text tokens.

    Raises:
        TrainingInputError: the model's directory has no tokenizer and none was named.
    """
    name = args.tokenizer_name or (BYTE_TOKENIZER if args.config_name else args.model_name_or_path)
    if name == BYTE_TOKENIZER:
        return build_byte_tokenizer(special_tokens_in_text=answers_end)
    directory = Path(str(name))
    if not (directory / "tokenizer_config.json").is_file():
        raise TrainingInputError(
            f"{directory} has no tokenizer_config.json; name a tokenizer with --tokenizer_name DIR, "
            f"or --tokenizer_name {BYTE_TOKENIZER} if the model was trained on bytes"
        )
    return AutoTokenizer.from_pretrained(directory)


def build_trainer(
    model_args: ModelArguments, data_args: DataArguments, args: ProgramArguments
) -> CausalLMTrainer:
    """Load tokenizer, data and model and return the trainer that joins them.

    Raises:
        TrainingInputError: tokenizer, data and model do not fit together.
    """
    if args.process_index != 0:
        datasets.disable_progress_bars()
    tokenizer = load_tokenizer(model_args, data_args)
    config = model_config(model_args.model_name_or_path, model_args.config_name, tokenizer)
    # Rank 0 fills the cache of `datasets`, the others then read it.
    with args.main_process_first(desc="reading the data"):
        data = load_data(
            data_args,
            block_size=resolve_block_size(data_args.block_size, config, DEFAULT_LENGTH[data_args.task]),
            longest=longest_sequence(config),
            tokenizer=tokenizer,
        )
    if args.process_index == 0:
        for note in data.notes:
            print(f"train.py: {note}", file=sys.stderr, flush=True)
    set_seed(args.seed)
    if args.preflight:
        given = {"model_config": config, "train": data.train, "evaluation": data.evaluation}
        compare_inputs(args, **given, tokenizer=tokenizer, rows=True)
    directory = model_args.model_name_or_path
    divides = args.parallel.divides
    # A divided model is built without weights: each rank reads, or draws, its part of them later.
    model = build_skeleton(config) if divides else build_model(config, directory)
    if data_args.packs_documents:
        rows = max(args.per_device_train_batch_size, args.per_device_eval_batch_size)
        check_packing(model.config, use_cache=bool(args.use_cache), rows=rows)
    return CausalLMTrainer(
        model=model,
        weights=directory if divides else None,
        peft_config=model_args.peft_config(),
        args=args,
        data=data,
        log_file=Path(args.output_dir) / "log.jsonl",
        platform=platform_label(args.device.type),
        processing_class=tokenizer,
    )


def report_dry_run(model_args: ModelArguments, data_args: DataArguments, args: ProgramArguments) -> str:
    """Return what a run would do.

    Raises:
        TrainingInputError: it would be refused.
    """
    tokenizer = load_tokenizer(model_args, data_args)
    config = model_config(model_args.model_name_or_path, model_args.config_name, tokenizer)
    length = resolve_block_size(data_args.block_size, config, DEFAULT_LENGTH[data_args.task])
    report = dry_run(args, build_skeleton(config), length)
    adapters = model_args.peft_config()
    return report if adapters is None else f"{describe(build_skeleton(config), adapters)}\n{report}"


def run(argv: Sequence[str]) -> None:
    """Train, evaluate, save, plot and report as ``argv`` says; every rank runs this.

    Raises:
        TrainingInputError: something the user gave is refused.
    """
    model_args, data_args, args = parse_arguments(argv)
    if args.dry_run:
        if args.process_index == 0:
            print(report_dry_run(model_args, data_args, args), flush=True)
        return
    trainer = build_trainer(model_args, data_args, args)
    device = describe_device(args.device, deepspeed=bool(args.deepspeed) or args.parallel.divides)
    model_dir = None
    if args.do_train:
        trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
        if trainer.interrupted_at is not None:
            report_interruption(trainer)
            return
        model_dir = Path(args.output_dir) / "model"
        # Under ZeRO-3 every rank takes part in gathering the weights.
        save = trainer.save_merged_model if model_args.lora_merge else trainer.save_model
        save(str(model_dir))
        trainer.save_state()
    if args.do_eval:
        trainer.evaluate()
    continuation = None
    if data_args.sample_tokens:
        prompt, tokens = data_args.sample_prompt, data_args.sample_tokens
        pipelined = args.parallel.pp > 1
        sample, source = (
            (pipeline_continuation, trainer) if pipelined else (sample_continuation, trainer.model)
        )
        continuation = sample(source, trainer.processing_class, prompt, tokens, args.seed)
    if trainer.is_world_process_zero():
        history = trainer.state.log_history
        folder = Path(args.output_dir)
        plot = timeline = None
        if args.do_train:
            name = model_args.config_name or model_args.model_name_or_path
            ranks = ranks_in_words(device.world_size, device.platform)
            plot = plot_losses(history, folder / "loss.png", f"{name} on {ranks}")
            timeline = None if args.pipeline_timeline is None else folder / PICTURE_NAME
        files = RunFiles(model=model_dir, plot=plot, timeline=timeline, log=folder / "log.jsonl")
        print(summary(history=history, device=device, files=files, continuation=continuation), flush=True)


def report_interruption(trainer: CausalLMTrainer) -> None:
    """Say where training has stopped on SIGTERM, and how it goes on; no time is left for anything else."""
    if trainer.is_world_process_zero():
        state = trainer.state
        print(
            f"train.py: stopped by SIGTERM after step {state.global_step} of {state.max_steps}, which "
            f"{trainer.interrupted_at} holds; start again with --resume_from_checkpoint to go on",
            file=sys.stderr,
            flush=True,
        )


def leave_process_group() -> None:
    """Destroy the default process group if there is one; every rank must get here."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
