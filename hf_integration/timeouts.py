"""The Trainer's `ddp_timeout` and HCCL_TIMEOUT are one setting of how long a rank may wait for the others."""

from __future__ import annotations

from collections.abc import MutableMapping

from transformers import TrainingArguments

from npu_plugins.comm.timeouts import (
    EXEC,
    EXEC_DEFAULT,
    MOST,
    SETTING,
    apply_setting,
    setting,
    torch_timeout,
)

DEFAULT: int = TrainingArguments.ddp_timeout
"""transformers' own `ddp_timeout` in seconds, which nobody asked for."""


def one_timeout(ddp_timeout: int, environ: MutableMapping[str, str]) -> tuple[int, list[str]]:
    """Make one setting of both, before the process group is made.

    HCCL_TIMEOUT stands where it is set, else a `ddp_timeout` other than the default does, and HCCL and
    DeepSpeed are set to it in `environ`. torch's groups then wait a little longer than HCCL, whose log is
    to be whole.

    Args:
        ddp_timeout: in seconds, as the Trainer has it.
        environ: of this rank.

    Returns:
        The timeout of torch's groups in seconds, and a sentence for each setting that ends a wait earlier
        than was asked for.

    Raises:
        CommError: HCCL_TIMEOUT is no time.
    """
    asked = setting(environ)
    if asked is None:
        if ddp_timeout == DEFAULT or ddp_timeout < 1:  # of the latter, torch says what is wrong
            return ddp_timeout, []
        if ddp_timeout > MOST:
            return ddp_timeout, _too_long(ddp_timeout, environ)
        environ[SETTING], asked = str(ddp_timeout), ddp_timeout
    sentences = apply_setting(environ)
    until_torch = round(torch_timeout(asked).total_seconds())
    if ddp_timeout in (DEFAULT, asked):
        return until_torch, sentences
    if ddp_timeout < asked:
        sentences.append(
            f"{SETTING}={asked}, but ddp_timeout ends a wait after {ddp_timeout} s; leave ddp_timeout out, "
            f"or give it more than {SETTING}"
        )
        return ddp_timeout, sentences
    return max(ddp_timeout, until_torch), sentences


def _too_long(ddp_timeout: int, environ: MutableMapping[str, str]) -> list[str]:
    """What is said of a timeout that not every card can keep, and that users give for "never"."""
    if environ.get(EXEC):
        return []
    return [
        f"ddp_timeout={ddp_timeout} is torch's alone: HCCL ends a wait after {EXEC_DEFAULT} s; give {MOST} "
        f"or less to have one timeout, or set {EXEC} too (0 is for ever, on Atlas A2 and newer)"
    ]
