"""`ddp_timeout` and HCCL_TIMEOUT as one setting."""

from __future__ import annotations

import pytest

from hf_integration.timeouts import DEFAULT, one_timeout
from npu_plugins.comm import CommError


@pytest.mark.parametrize(
    ("ddp_timeout", "environ", "torchs", "hccls"),
    [
        (DEFAULT, {}, 1800, None),
        (300, {}, 370, "340"),
        (DEFAULT, {"HCCL_TIMEOUT": "300"}, 370, "340"),
        (300, {"HCCL_TIMEOUT": "300"}, 370, "340"),
        (320, {"HCCL_TIMEOUT": "300"}, 370, "340"),
        (7200, {"HCCL_TIMEOUT": "300"}, 7200, "340"),
        (7200, {}, 7306, "7276"),
    ],
)
def test_one_setting(ddp_timeout: int, environ: dict[str, str], torchs: int, hccls: str | None) -> None:
    assert one_timeout(ddp_timeout, environ) == (torchs, [])
    assert environ.get("HCCL_EXEC_TIMEOUT") == hccls
    assert (environ.get("HCCL_TIMEOUT") is None) == (hccls is None)


@pytest.mark.parametrize(
    ("ddp_timeout", "environ", "sentence"),
    [
        (100, {"HCCL_TIMEOUT": "300"}, "HCCL_TIMEOUT=300, but ddp_timeout ends a wait after 100 s; leave"),
        (300, {"HCCL_EXEC_TIMEOUT": "100"}, "HCCL_TIMEOUT=300, but HCCL_EXEC_TIMEOUT=100 ends a wait after"),
        (
            180000000,
            {},
            "ddp_timeout=180000000 is torch's alone: HCCL ends a wait after 1836 s; give 17310 or",
        ),
    ],
)
def test_what_contradicts_is_said(ddp_timeout: int, environ: dict[str, str], sentence: str) -> None:
    torchs, sentences = one_timeout(ddp_timeout, environ)
    assert len(sentences) == 1 and sentences[0].startswith(sentence)
    assert torchs == (370 if ddp_timeout == 300 else ddp_timeout)


def test_for_ever_on_purpose_is_no_contradiction() -> None:
    assert one_timeout(180000000, {"HCCL_EXEC_TIMEOUT": "0"}) == (180000000, [])


def test_what_is_no_time_is_refused_by_whoever_reads_it() -> None:
    with pytest.raises(CommError, match="HCCL_TIMEOUT=soon is no whole number of seconds"):
        one_timeout(DEFAULT, {"HCCL_TIMEOUT": "soon"})
    assert one_timeout(0, {}) == (0, []), "torch refuses it"
