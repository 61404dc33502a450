"""Whether the file is a ds_config at all: an object, and of DeepSpeed rather than of another program."""

from __future__ import annotations

from collections.abc import Iterator

from ds_configs.documents import Document
from ds_configs.lint.finding import Finding, codes
from ds_configs.schema.key import spelt

# Keys that other programs' files have at the top level and a ds_config never does, and whose files they are.
STRANGERS = (
    ({"model_type", "architectures"}, "a model's config.json"),
    ({"weight_map"}, "the index of a model's weights"),
    ({"distributed_type", "deepspeed_config"}, "accelerate's configuration, which names the ds_config"),
    (
        {"output_dir", "num_train_epochs", "per_device_train_batch_size", "learning_rate"},
        "a file of training arguments, which names the ds_config",
    ),
    ({"added_tokens_decoder", "tokenizer_class"}, "a tokenizer's configuration"),
)
OWN = {"zero_optimization", "fp16", "bf16", "train_batch_size", "train_micro_batch_size_per_gpu"}


def check_shape(document: Document) -> Iterator[Finding]:
    """Yield at most one finding: the root is no object, or another program's."""
    root = document.root
    if root is None:
        return
    if root.kind != "object":
        yield _finding(
            document, "DSC136", f"the file holds a {_name(root.kind)}, not an object", "write { … }"
        )
        return
    keys = set(root.value)
    if keys & OWN:
        return
    for name, value in root.value.items():
        if isinstance(value, dict) and OWN & set(value):
            reason = f"the configuration stands inside {spelt(name)}, where DeepSpeed does not look"
            yield _finding(document, "DSC137", reason, "write what stands inside it as the whole file")
            return
    for marks, what in STRANGERS:
        if keys & marks:
            found = ", ".join(sorted(keys & marks))
            yield _finding(document, "DSC137", f"this looks like {what} ({found})", "name the ds_config file")
            return


def _name(kind: str) -> str:
    return {"str": "string", "bool": "truth value"}.get(kind, kind)


def _finding(document: Document, code: str, reason: str, mend: str) -> Finding:
    known = codes()[code]
    start = document.root.start if document.root else 0
    line, column = document.lines.position(start)
    return Finding(
        code,
        known.severity,
        document.path,
        line,
        column,
        line,
        column + 1,
        "",
        reason,
        known.consequence,
        mend,
    )
