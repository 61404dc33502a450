"""A plan in words and as data: the proposal, and why each other family lost."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ds_configs.plan.candidates import Candidate
from ds_configs.plan.config import ds_config, launch_command
from ds_configs.plan.request import PlanRequest
from ds_configs.plan.search import Miss, Plan, Proposal
from ds_configs.throughput import StepTime

GIB, MIB = 2**30, 2**20
TERMS = {
    "compute": "computation",
    "recomputation": "recomputation",
    "tensor_parallel": "tensor-parallel communication",
    "expert_parallel": "expert-parallel communication",
    "pipeline": "messages between stages",
    "bubble": "pipeline bubble",
    "data_parallel": "data-parallel communication",
    "optimizer": "optimizer",
    "offload": "offload traffic",
}
"""The terms of a step's time in words."""


def amount(size: float) -> str:
    """Return ``size`` bytes for people."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"


def why_slower(winner: Proposal, loser: Proposal) -> str:
    """Return how much slower ``loser`` is, and the term that costs it most."""
    more = loser.seconds - winner.seconds
    differences = {
        field.name: getattr(loser.time, field.name) - getattr(winner.time, field.name)
        for field in fields(StepTime)
    }
    term = max(differences, key=lambda name: differences[name])
    if abs(more) < winner.seconds / 200:
        return "as fast; the proposal is simpler, or runs today"
    if more < 0:
        simpler = "the proposal is simpler, or runs today"
        return f"faster by {100 * -more / winner.seconds:.1f} %, less than the prediction's error: {simpler}"
    percent, because = 100 * more / winner.seconds, f"{TERMS[term]} +{_seconds(differences[term])}"
    return f"slower by {percent:.0f} % ({_seconds(more)}): {because}"


def why_not_fitting(miss: Miss) -> str:
    """Return by how much ``miss`` does not fit, and because of what."""
    term, size = miss.term
    where = "on the NPU" if miss.where == "NPU" else "in host memory"
    return f"does not fit: {amount(miss.excess)} too much {where} because of {term} ({amount(size)})"


def why_impossible(request: PlanRequest, family: str) -> str:
    """Return why ``family`` has no candidate at all."""
    if request.npus == 1 and "offload" not in family and family != "data parallel":
        return "one NPU has nothing to divide"
    if family.startswith(("data", "ZeRO")):
        return (
            f"a global batch of {request.global_batch} cannot be divided over {request.npus} replicas; "
            f"use a multiple of {request.npus}"
        )
    degree = {"tensor parallel": "tp", "pipeline parallel": "pp", "expert parallel": "ep"}.get(
        family, "tp and pp"
    )
    return f"no {degree} above 1 divides {request.npus} NPUs, model and batch on an engine that may be used"


def layout(candidate: Candidate) -> str:
    """Return the degrees and choices of ``candidate`` in one line."""
    job, parallel = candidate.job, candidate.job.parallel
    words = [f"dp {parallel.dp}", f"tp {parallel.tp}", f"pp {parallel.pp}"]
    words += [f"ep {parallel.ep}"] if parallel.ep > 1 else []
    words += [f"ZeRO stage {job.stage}"]
    words += [f"micro-batch {job.micro_batch} x {job.micro_batches}"]
    if parallel.pp > 1:
        words.append(job.schedule + (f" with {job.virtual_stages} chunks" if job.virtual_stages > 1 else ""))
    words += ["sequence parallel"] if parallel.sequence_parallel else []
    words += [f"optimizer on {job.offload_optimizer}"] if job.offload_optimizer != "none" else []
    words += [f"parameters on {job.offload_param}"] if job.offload_param != "none" else []
    words.append("full recomputation" if job.recomputation == "full" else "no recomputation")
    return ", ".join(words)


def to_text(plan: Plan, script: str = "train.py", config_file: str = "ds_config.json") -> str:
    """Return ``plan`` for people."""
    request = plan.request
    lines = [
        f"{request.shape.name} ({request.shape.parameters() / 1e9:.2f} B parameters) on {request.npus} x "
        f"{request.hardware.title}",
        f"{request.seq} tokens, global batch {request.global_batch}, {request.dtype}, at most "
        f"{request.capacity / GIB:.1f} of {request.hardware.hbm_bytes / GIB:.1f} GiB a card",
        "",
    ]
    if plan.winner is None:
        lines += ["Nothing fits.", *_losers(plan)]
        return "\n".join(lines) + "\n"
    lines += _proposal(plan.winner, "Proposed")
    lines += ["", "Not proposed", *_losers(plan)]
    today = plan.runs_today
    lines += ["", *_launch(plan.winner, request, script, config_file)]
    if today is not plan.winner and today is not None:
        lines += ["", *_proposal(today, "The best that runs today")]
        lines += ["", *_launch(today, request, script, config_file)]
    return "\n".join(lines) + "\n"


def to_data(plan: Plan, script: str = "train.py", config_file: str = "ds_config.json") -> dict[str, Any]:
    """Return ``plan`` as JSON-ready data: seconds, bytes, and the same reasons as the text."""
    request, winner = plan.request, plan.winner
    return {
        "model": request.shape.name,
        "parameters": request.shape.parameters(),
        "hardware": request.hardware.name,
        "npus": request.npus,
        "capacity_bytes": request.capacity,
        "candidates": plan.looked_at,
        "proposals": [_data(each) for each in plan.proposals],
        "rejected": [
            {"family": miss.candidate.family, "reason": why_not_fitting(miss), "excess_bytes": miss.excess}
            for miss in plan.misses
        ]
        + [{"family": name, "reason": why_impossible(request, name)} for name in plan.impossible],
        "slower": [
            {"family": each.family, "engine": each.candidate.engine.name, "reason": why_slower(winner, each)}
            for each in plan.proposals[1:]
        ]
        if winner
        else [],
        "ds_config": ds_config(request, winner.candidate)[0] if winner else None,
        "launch": launch_command(request, winner.candidate, script, config_file) if winner else None,
    }


def _proposal(proposal: Proposal, title: str) -> list[str]:
    job = proposal.candidate.job
    total = proposal.seconds
    parts = sorted(((getattr(proposal.time, name), words) for name, words in TERMS.items()), reverse=True)
    shares = ", ".join(f"{words} {100 * part / total:.1f} %" for part, words in parts if part >= total / 1000)
    term, size = max(proposal.memory.terms.items(), key=lambda item: item[1])
    return [
        f"{title}: {proposal.family}, run by {proposal.candidate.engine.name}",
        f"  {layout(proposal.candidate)}",
        f"  step {_seconds(total)}, {job.global_batch * job.seq / total:,.0f} tokens/s",
        f"  of it {shares}",
        f"  memory {amount(proposal.memory.total)} a card, most of it {term} ({amount(size)})"
        + (f"; {amount(proposal.memory.host)} of host memory a card" if proposal.memory.host else ""),
    ]


def _launch(proposal: Proposal, request: PlanRequest, script: str, config_file: str) -> list[str]:
    candidate = proposal.candidate
    lines = ["Launch", "  " + launch_command(request, candidate, script, config_file)]
    return lines + [f"  note: {note}" for note in ds_config(request, candidate)[1]]


def _losers(plan: Plan) -> list[str]:
    rows = []
    if plan.winner:
        for each in plan.proposals[1:]:
            rows.append((_label(each.candidate), why_slower(plan.winner, each)))
    rows += [(_label(miss.candidate), why_not_fitting(miss)) for miss in plan.misses]
    reasons = {name: why_impossible(plan.request, name) for name in plan.impossible}
    width = max((len(name) for name, _ in rows), default=0)
    lines = [f"  {name:<{width}}  {reason}" for name, reason in rows]
    for reason in dict.fromkeys(reasons.values()):
        names = ", ".join(name for name, why in reasons.items() if why == reason)
        lines.append(f"  {names}: {reason}")
    return lines


def _label(candidate: Candidate) -> str:
    engine = candidate.engine
    whose = " (npu_plugins)" if engine.own else ""
    return candidate.family + (whose if engine.today else " (to come)")


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"


def _data(proposal: Proposal) -> dict[str, Any]:
    job, engine = proposal.candidate.job, proposal.candidate.engine
    return {
        "family": proposal.family,
        "engine": engine.name,
        "runs_today": engine.today,
        "dp": job.parallel.dp,
        "tp": job.parallel.tp,
        "pp": job.parallel.pp,
        "ep": job.parallel.ep,
        "stage": job.stage,
        "offload_optimizer": job.offload_optimizer,
        "offload_param": job.offload_param,
        "recomputation": job.recomputation,
        "schedule": job.schedule if job.parallel.pp > 1 else None,
        "chunks": job.virtual_stages,
        "micro_batch": job.micro_batch,
        "accumulation": job.micro_batches,
        "seconds": proposal.seconds,
        "tokens_per_second": job.global_batch * job.seq / proposal.seconds,
        "time": {name: getattr(proposal.time, name) for name in TERMS},
        "memory_bytes": proposal.memory.total,
        "memory": dict(proposal.memory.terms),
        "host_bytes": proposal.memory.host,
    }
