"""Trains a named Llama as a DeepSpeed pipeline for a few steps: the program that a pipeline proposal needs.

``planner_fits.py`` starts it with the launch command that the planner prints, and ``--job`` beside it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

import deepspeed
import torch
from accuracy.case import Case
from accuracy.models import pipeline_model

from ds_configs.models import find_model


def batches(case: Case, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield random tokens as input and labels for ever."""
    while True:
        ids = torch.randint(0, case.vocab, (case.micro_batch, case.sequence)).to(device)
        yield ids, ids


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int)
    parser.add_argument("--deepspeed", required=True, help="the configuration")
    parser.add_argument("--job", required=True, help="JSON: model, stages, sequence, recompute, steps")
    args = parser.parse_args()
    job = json.loads(args.job)
    with open(args.deepspeed, encoding="utf-8") as file:
        config = json.load(file)
    shape = find_model(job["model"])
    case = Case(
        job["model"],
        layers=shape.layers,
        hidden=shape.hidden,
        ffn=shape.ffn,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        vocab=shape.vocab,
        pp=job["stages"],
        micro_batch=config["train_micro_batch_size_per_gpu"],
        sequence=job["sequence"],
        recomputation="full" if job["recompute"] else "none",
    )
    deepspeed.init_distributed()
    torch.manual_seed(0)
    model = pipeline_model(case)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=parameters, config=config)
    data = batches(case, engine.device)
    for _ in range(job["steps"]):
        loss = engine.train_batch(data)
    print(f"loss {float(loss):.3f}", flush=True)


if __name__ == "__main__":
    main()
