"""The batch triple: train batch = micro-batch × accumulation × data-parallel ranks (config.py:600)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ds_configs.errors import DsConfigError
from ds_configs.generate.options import AUTO

if TYPE_CHECKING:
    from ds_configs.generate.request import ConfigRequest

KEYS = {
    "train_batch": "train_batch_size",
    "micro_batch": "train_micro_batch_size_per_gpu",
    "accumulation": "gradient_accumulation_steps",
}


def batch_keys(request: ConfigRequest) -> dict[str, Any]:
    """Return the batch keys of the configuration: what is given, and what follows from it.

    With the world size known, all three are written for plain DeepSpeed; without it those that are given, and
    DeepSpeed derives the rest. AutoTP's ``train_batch_size`` is left out: DeepSpeed counts tp ranks as
    data-parallel there and would refuse the number of sequences that a step really sees. For HF what is not
    given stays ``"auto"``.

    Raises:
        DsConfigError: too little is given, or the three do not multiply out.
    """
    given = {name: getattr(request, name) for name in KEYS if getattr(request, name) not in (AUTO, None)}
    left_out = {name for name in KEYS if getattr(request, name) is None}
    replicas = request.parallel.dp if request.parallel else None
    if request.target == "hf":
        _check_product(given, replicas)
        if {"train_batch", "micro_batch"} <= left_out:
            raise DsConfigError("train_batch and micro_batch are both left out; DeepSpeed needs one of them")
        return {key: given.get(name, AUTO) for name, key in KEYS.items() if name not in left_out}
    complete = {
        name: value for name, value in complete_batch(given, replicas).items() if name not in left_out
    }
    if request.autotp:
        complete.pop("train_batch", None)
        if set(complete) != {"micro_batch", "accumulation"}:
            raise DsConfigError(
                "AutoTP needs micro_batch and accumulation in numbers, because DeepSpeed counts a train "
                "batch over tp ranks too; give micro_batch, or world_size so that it can be computed"
            )
    return {KEYS[name]: complete[name] for name in KEYS if name in complete}


def complete_batch(given: dict[str, int], replicas: int | None) -> dict[str, int]:
    """Return ``given``, one to three of `KEYS`, with what follows from it on ``replicas`` ranks if known.

    Raises:
        DsConfigError: neither batch is given, or the numbers do not multiply out.
    """
    if not set(given) & {"train_batch", "micro_batch"}:
        raise DsConfigError(
            "plain DeepSpeed needs a batch in numbers; give micro_batch, or train_batch and accumulation"
        )
    values = dict(given)
    if len(values) == 1:
        values["accumulation"] = 1
    _check_product(values, replicas)
    if replicas is None or len(values) == 3:
        return values
    if "train_batch" not in values:
        values["train_batch"] = values["micro_batch"] * values["accumulation"] * replicas
    else:
        missing, known = (
            ("micro_batch", "accumulation") if "accumulation" in values else ("accumulation", "micro_batch")
        )
        values[missing] = values["train_batch"] // (values[known] * replicas)
    return values


def _check_product(given: dict[str, int], replicas: int | None) -> None:
    """Refuse a train batch that the rest of ``given`` cannot make up, on any number of ranks if unknown."""
    train = given.get("train_batch")
    parts = [f"{name} {given[name]}" for name in ("micro_batch", "accumulation") if name in given]
    product = given.get("micro_batch", 1) * given.get("accumulation", 1) * (replicas or 1)
    if train is None or train == product:
        return
    parts += [] if replicas is None else [f"{replicas} data-parallel ranks"]
    factors = " × ".join(parts)
    if replicas is not None and len(given) == 3:
        raise DsConfigError(f"train_batch={train} is not {factors} = {product}; drop one of the three")
    if train % product:
        raise DsConfigError(
            f"train_batch={train} is no multiple of {factors}; give a multiple of {product}, or change the "
            "others"
        )
