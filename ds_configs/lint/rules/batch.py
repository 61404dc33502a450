"""The batch triple: train_batch_size = micro-batch × accumulation steps × data-parallel ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ds_configs.documents import Edit
from ds_configs.lint.context import AUTO, Context, is_finite
from ds_configs.lint.finding import BOTH, HF, Finding

TRAIN, MICRO, STEPS = (
    ("train_batch_size",),
    ("train_micro_batch_size_per_gpu",),
    ("gradient_accumulation_steps",),
)
Size = float | int


@dataclass(frozen=True)
class Triple:
    """The three sizes, as given or as DeepSpeed derives them; None where they are not given."""

    train: Size | None
    micro: Size | None
    steps: Size | None

    def derived(self, ranks: int) -> Triple:
        """Fill what is missing as DeepSpeedConfig._set_batch_related_parameters does (floor division)."""
        train, micro, steps = self.train, self.micro, self.steps
        if train is not None and micro is not None:
            steps = train // micro // ranks if steps is None else steps
        elif train is not None:
            micro = train // ranks // steps if steps is not None else train // ranks
            steps = 1 if steps is None else steps
        elif micro is not None:
            steps = 1 if steps is None else steps
            train = micro * steps * ranks
        return Triple(train, micro, steps)

    def holds(self, ranks: int) -> bool:
        """Whether DeepSpeed accepts the sizes on ``ranks`` ranks."""
        whole = self.derived(ranks)
        if whole.train is None or whole.micro is None or whole.steps is None:
            return False
        positive = whole.train > 0 and whole.micro > 0 and whole.steps > 0
        return positive and whole.train == whole.micro * whole.steps * ranks

    def ranks(self) -> int | None:
        """Return the one number of ranks on which the sizes hold, None if there is none or more than one."""
        if self.train is None or self.micro is None or self.steps is None:
            return None
        ranks, left = divmod(self.train, self.micro * self.steps)
        return int(ranks) if not left and ranks >= 1 else None


def check(context: Context) -> Iterator[Finding]:
    """Yield what is wrong with the batch sizes."""
    tensor_parallel = context.number(("tensor_parallel", "autotp_size"), 0) or 0
    if tensor_parallel > 1:
        reason = f"with autotp_size {tensor_parallel:g} DeepSpeed still counts every rank in the batch sizes"
        mend = "give --world-size, and train_batch_size, for all ranks"
        yield context.finding("DSC305", ("tensor_parallel", "autotp_size"), reason, mend, on_value=True)
    sizes = {path: context.get(path) for path in (TRAIN, MICRO, STEPS)}
    written = {path: value for path, value in sizes.items() if value is not None}
    if TRAIN not in written and MICRO not in written:
        yield _none_given(context)
        return
    numbers = {path: value for path, value in written.items() if is_finite(value)}
    if any(value <= 0 for value in numbers.values()) or len(numbers) < len(
        [value for value in written.values() if value != AUTO]
    ):
        return  # rules/values.py says why
    triple = Triple(numbers.get(TRAIN), numbers.get(MICRO), numbers.get(STEPS))
    if AUTO in written.values():
        yield from _partly_auto(context, triple)
        return
    yield from _given(context, triple)


def _none_given(context: Context) -> Finding:
    mend = "add train_micro_batch_size_per_gpu, as large as fits"
    if context.takes_auto:
        mend = 'add "train_micro_batch_size_per_gpu": "auto"'
        edits = context.put(MICRO, AUTO)
        return context.finding("DSC301", (), "the file gives no batch size", mend, edits=edits)
    edits = context.put(MICRO, 1)
    return context.finding("DSC301", (), "the file gives no batch size", mend, edits=edits, safe=False)


def _given(context: Context, triple: Triple) -> Iterator[Finding]:
    """Check three numbers, or two, or one; a missing one is derived."""
    ranks = context.options.world_size
    under_hf = triple if triple.steps is not None else Triple(triple.train, triple.micro, 1)
    if ranks is not None:
        if not triple.holds(ranks):
            yield _product(context, triple, ranks)
        elif not under_hf.holds(ranks):
            yield _under_hf(context, under_hf, ranks)
        return
    if triple.train is None:
        return
    if triple.micro is None or triple.steps is None:
        step = triple.micro or triple.steps or 1
        if triple.train % step:
            yield _product(context, triple, None)
        elif triple.steps is None and triple.micro is not None:
            only = under_hf.ranks()
            yield _fixed(context, under_hf, only, (HF,)) if only else _under_hf(context, under_hf, None)
        return
    only = triple.ranks()
    yield _product(context, triple, None) if only is None else _fixed(context, triple, only, BOTH)


def _partly_auto(context: Context, triple: Triple) -> Iterator[Finding]:
    """Check what is fixed beside an "auto": HF fills the rest from its flags and multiplies."""
    if triple.train is None:
        return
    step = (triple.micro or 1) * (triple.steps or 1) * (context.options.world_size or 1)
    if triple.train % step:
        reason = f"train_batch_size {_n(triple.train)} is no multiple of {_n(step)}, the other sizes' product"
        yield context.finding(
            "DSC302", TRAIN, reason, 'write "auto", so that HF computes it', loaders=(HF,), on_value=True
        )


def _product(context: Context, triple: Triple, ranks: int | None) -> Finding:
    whole = triple.derived(ranks or 1)
    on = f"{ranks} rank{'s' if ranks != 1 else ''}" if ranks else "any number of ranks"
    product = f"{_n(whole.micro)} × {_n(whole.steps)} × {ranks if ranks else 'ranks'}"
    derived = [
        name
        for name, value in (("micro-batch", triple.micro), ("accumulation steps", triple.steps))
        if value is None
    ]
    how = f" ({' and '.join(derived)} derived)" if derived else ""
    sizes = f"micro-batch × accumulation × ranks = {product}{how}"
    reason = f"on {on}, train_batch_size {_n(triple.train)} is not {sizes}"
    mend, edits, safe = _repair(context, triple, ranks)
    return context.finding("DSC302", _at(context), reason, mend, edits=edits, safe=safe, on_value=True)


def _repair(context: Context, triple: Triple, ranks: int | None) -> tuple[str, tuple[Edit, ...], bool]:
    """Return how to mend a product that does not hold.

    The global batch decides the training, so it stays. DeepSpeed derives the accumulation steps that fit it
    on any number of ranks if they are left out; under HF, which writes 1 for them then, HF must compute.
    """
    if context.takes_auto:
        return 'write "auto" for train_batch_size, so that HF computes it', context.put(TRAIN, AUTO), True
    without = Triple(triple.train, triple.micro, None)
    if HF in context.target:
        return "choose sizes that multiply out", (), False
    if triple.steps is not None and triple.micro is not None and without.holds(ranks or 1):
        return "delete gradient_accumulation_steps: DeepSpeed derives it", context.delete(STEPS), True
    return "choose sizes that multiply out", (), False


def _under_hf(context: Context, triple: Triple, ranks: int | None) -> Finding:
    on = f"{ranks} rank{'s' if ranks != 1 else ''}" if ranks else "any number of ranks"
    reason = (
        "gradient_accumulation_steps is left out, accelerate writes 1 for it, and then train_batch_size "
        f"{_n(triple.train)} is not {_n(triple.micro)} × 1 on {on}"
    )
    if not context.takes_auto:
        mend = "write gradient_accumulation_steps, so that the three multiply out"
        return context.finding("DSC303", _at(context), reason, mend, loaders=(HF,), on_value=True)
    mend = 'write "auto" for train_batch_size, and for gradient_accumulation_steps'
    edits = (
        *context.put(TRAIN, AUTO),
        *context.put(STEPS, AUTO),
    )
    return context.finding("DSC303", _at(context), reason, mend, edits=edits, loaders=(HF,), on_value=True)


def _fixed(
    context: Context, triple: Triple, ranks: int, loaders: frozenset[str] | tuple[str, ...]
) -> Finding:
    steps = _n(triple.steps)
    product = f"{_n(triple.train)} = {_n(triple.micro)} × {steps} × {ranks}"
    reason = f"{product} holds on {ranks} data-parallel ranks only"
    mend = "leave gradient_accumulation_steps out and DeepSpeed derives it, or give --world-size to check it"
    return context.finding("DSC304", _at(context), reason, mend, loaders=loaders, on_value=True)


def _at(context: Context) -> tuple[str, ...]:
    return TRAIN if context.member(TRAIN) is not None else MICRO


def _n(size: Size | None) -> str:
    return "?" if size is None else f"{size:g}" if isinstance(size, float) else str(int(size))
