"""What a run says at its end: a sampled continuation, where its files lie, and how the loss went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.integrations import is_deepspeed_zero3_enabled

from hf_integration.device import DeviceDescription, ranks_in_words
from hf_integration.models import longest_sequence
from hf_integration.plot import loss_unit, series
from hf_integration.trainer import speed_key

SIMULATED = "no card took part; times and speeds are those of this computer's CPU"


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """Paths a run leaves behind, in the order in which they are told; None where none was made."""

    model: Path | None = None
    plot: Path | None = None
    timeline: Path | None = None
    log: Path


def sample_continuation(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, tokens: int, seed: int
) -> str:
    """Return ``prompt`` and up to ``tokens`` sampled ones; under ZeRO-3 every rank must call this."""
    encoded = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).to(model.device)
    # The key/value cache and the prompt together must fit the model's positions.
    longest = longest_sequence(model.config)
    length = encoded["input_ids"].shape[1] + tokens
    torch.manual_seed(seed)
    model.eval()
    with torch.no_grad():
        output = model.generate(
            **encoded,
            do_sample=True,
            temperature=0.8,
            max_length=min(length, longest) if longest else length,
            # Under ZeRO-3 every forward gathers weights from all ranks, so none may stop before the others.
            synced_gpus=is_deepspeed_zero3_enabled(),
            pad_token_id=tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        )
    return tokenizer.batch_decode(output, skip_special_tokens=True)[0]


def summary(
    *,
    history: Sequence[dict[str, Any]],
    device: DeviceDescription,
    files: RunFiles,
    continuation: str | None,
) -> str:
    """Return the closing report of a run as text, one fact a line."""
    simulated = device.platform.startswith("simulated")
    lines = [
        "",
        *([f"on            {ranks_in_words(device.world_size, device.platform)}: {SIMULATED}"] * simulated),
        f"device        {device.device} ({device.name}), {device.world_size} rank(s)",
        f"backend       {device.backend}",
        f"accelerator   {device.accelerator}",
        *loss_lines(history, device.platform),
        *(f"{name:<14}{path}" for name, path in vars(files).items() if path),
    ]
    if continuation is not None:
        lines += ["sample", *(f"  | {line}" for line in continuation.splitlines())]
    return "\n".join(lines)


def loss_lines(history: Sequence[dict[str, Any]], platform: str) -> list[str]:
    """Return the lines on training loss, evaluation loss and speed, as far as ``history`` has them."""
    lines = []
    unit = loss_unit(history)
    steps, losses = series(history, unit.key)
    if losses:
        first, last = f"{losses[0]:.4f} (step {steps[0]})", f"{losses[-1]:.4f} (step {steps[-1]})"
        lines.append(f"loss          {first} -> {last} {unit.name}")
    _, evaluated = series(history, f"eval_{unit.key}")
    if evaluated:
        value = series(history, "eval_perplexity")[1][-1]
        lines.append(f"evaluation    {evaluated[-1]:.4f} {unit.name}, perplexity {value:.2f} per token")
    _, speeds = series(history, speed_key(platform))
    if speeds:
        name = platform.replace("_", " ")
        lines.append(f"speed         {median(speeds):.0f} tokens/s on {name} (median, all ranks together)")
    return lines
