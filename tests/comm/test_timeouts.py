"""HCCL_TIMEOUT, the one setting of how long a wait may take: what HCCL, DeepSpeed and torch get of it."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from npu_plugins import import_hooks
from npu_plugins.comm import CommError
from npu_plugins.comm.timeouts import (
    GRACE,
    MOST,
    apply_setting,
    contradictions,
    setting,
    told,
    torch_timeout,
    wait_limit,
)
from tests.packaging.interpreter import run_python, said_by_us

SECONDS = st.integers(1, MOST)


def test_the_line_of_the_documents() -> None:
    environ = {"HCCL_TIMEOUT": "300"}
    assert apply_setting(environ) == []
    assert wait_limit(environ) == 300.0
    assert environ == {
        "HCCL_TIMEOUT": "300",
        "HCCL_EXEC_TIMEOUT": "340",  # 330 s, up to a multiple of 68
        "HCCL_CONNECT_TIMEOUT": "330",
        "DEEPSPEED_TIMEOUT": "7",  # minutes
    }
    assert torch_timeout(300) == timedelta(seconds=370)


@given(SECONDS)
def test_the_watch_comes_first_then_hccl_then_torch(seconds: int) -> None:
    environ = {"HCCL_TIMEOUT": str(seconds)}
    apply_setting(environ)
    exec_, connect = int(environ["HCCL_EXEC_TIMEOUT"]), int(environ["HCCL_CONNECT_TIMEOUT"])
    on_an_older_card = exec_ // 68 * 68  # CANN's rule for Atlas training cards
    assert wait_limit(environ) == seconds
    assert seconds + GRACE <= on_an_older_card == exec_ <= 17340
    assert 120 <= connect <= 7200 and (connect >= seconds + GRACE or connect == 7200)
    assert torch_timeout(seconds).total_seconds() >= exec_ + GRACE
    assert int(environ["DEEPSPEED_TIMEOUT"]) * 60 >= exec_ + GRACE
    assert wait_limit(environ, torch_timeout(seconds)) == seconds, "torch's own end does not shorten it"
    assert contradictions(environ) == []
    again = dict(environ)
    assert apply_setting(again) == [] and again == environ, "ranks get it from their launcher a second time"


@pytest.mark.parametrize("text", ["0", "-1", "ten", "1.5", "99999", "٣٠٠"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(CommError, match=rf"HCCL_TIMEOUT={text} is no whole number .* HCCL_TIMEOUT=300"):
        setting({"HCCL_TIMEOUT": text})


@pytest.mark.parametrize("environ", [{}, {"HCCL_TIMEOUT": ""}, {"HCCL_TIMEOUT": " "}])
def test_without_the_setting_nothing_is_set(environ: dict[str, str]) -> None:
    before = dict(environ)
    assert apply_setting(environ) == [] and environ == before and setting(environ) is None


@pytest.mark.parametrize(
    ("environ", "group", "backend", "limit"),
    [
        ({}, None, "hccl", 1806.0),  # HCCL's own 1836 s
        ({}, None, "gloo", 1770.0),  # torch's own 1800 s
        ({}, 600, "hccl", 570.0),  # DeepSpeed's own ten minutes
        ({}, 7200, "hccl", 1806.0),
        ({}, 7200, "gloo", 7170.0),  # HCCL's variables do not end a wait of gloo
        ({"HCCL_EXEC_TIMEOUT": "100"}, None, "cpu:gloo,npu:hccl", 70.0),
        ({"HCCL_EXEC_TIMEOUT": "100"}, None, "gloo", 1770.0),
        ({"HCCL_EXEC_TIMEOUT": "0"}, None, "hccl", math.inf),
        ({"HCCL_EXEC_TIMEOUT": "0"}, 40, "hccl", 20.0),
        ({"HCCL_TIMEOUT": "5"}, 1800, "gloo", 5.0),
        ({"HCCL_TIMEOUT": "300"}, 100, "gloo", 70.0),
        ({"HCCL_TIMEOUT": "300", "HCCL_EXEC_TIMEOUT": "100"}, None, "hccl", 70.0),
    ],
)
def test_a_wait_counts_as_hanging_before_the_first_that_would_end_it(
    environ: dict[str, str], group: int | None, backend: str, limit: float
) -> None:
    timeout = None if group is None else timedelta(seconds=group)
    assert wait_limit(environ, timeout, backend=backend) == limit


@pytest.mark.parametrize(
    ("theirs", "sentence"),
    [
        ({"HCCL_EXEC_TIMEOUT": "120"}, "HCCL_EXEC_TIMEOUT=120 ends a wait after 120 s; unset"),
        ({"HCCL_CONNECT_TIMEOUT": "120"}, "HCCL_CONNECT_TIMEOUT=120 ends the making of a group after 120 s"),
        ({"HCCL_EVENT_TIMEOUT": "60"}, "HCCL_EVENT_TIMEOUT=60 ends a wait after 60 s"),
        ({"DEEPSPEED_TIMEOUT": "4"}, "DEEPSPEED_TIMEOUT=4 ends a wait after 240 s"),
        ({"HCCL_TIMEOUT": "1500", "HCCL_OP_EXPANSION_MODE": "AIV"}, "HCCL ends a wait after 1091 s"),
    ],
)
def test_a_users_variable_stays_and_a_contradiction_is_said(theirs: dict[str, str], sentence: str) -> None:
    environ = {"HCCL_TIMEOUT": "300"} | theirs
    found = apply_setting(environ)
    assert len(found) == 1 and sentence in found[0], found
    assert environ | theirs == environ


def test_a_users_longer_variable_is_no_contradiction() -> None:
    theirs = {"HCCL_EXEC_TIMEOUT": "0", "HCCL_CONNECT_TIMEOUT": "7200", "DEEPSPEED_TIMEOUT": "60"}
    environ = {"HCCL_TIMEOUT": "300"} | theirs
    assert apply_setting(environ) == [] and environ == {"HCCL_TIMEOUT": "300"} | theirs
    assert wait_limit(environ) == 300.0


def test_timeouts_in_words() -> None:
    assert (
        told({"HCCL_TIMEOUT": "9", "HCCL_CONNECT_TIMEOUT": "120"})
        == "HCCL_TIMEOUT=9 HCCL_CONNECT_TIMEOUT=120"
    )
    assert told({}) == "no timeout variable"


def test_the_line_of_the_documents_in_a_program() -> None:
    """In a fresh interpreter, as a launched rank is one: what torch, HCCL and DeepSpeed then wait."""
    program = (
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "group = dist.new_group([0])._get_backend(torch.device('cpu'))\n"
        "names = ('HCCL_EXEC_TIMEOUT', 'HCCL_CONNECT_TIMEOUT', 'DEEPSPEED_TIMEOUT')\n"
        "print(group.options._timeout.total_seconds(), *(os.environ[name] for name in names))\n"
    )
    environ = {"HCCL_TIMEOUT": "300", "DEEPSPEED_TIMEOUT": "1", "RANK": "0"}
    done = run_python("-c", program, **environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.stdout.split() == ["370.0", "340", "330", "1"], done.stderr
    assert said_by_us(done.stderr) == [
        "npu-plugins: warning: HCCL_TIMEOUT=300, but DEEPSPEED_TIMEOUT=1 ends a wait after 60 s; unset "
        "DEEPSPEED_TIMEOUT, or give it more than HCCL_TIMEOUT."
    ]


def test_what_is_no_time_ends_the_import_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_TIMEOUT", "5 min")
    steps = import_hooks.around_torch(torch)
    next(steps)
    with pytest.raises(CommError, match="HCCL_TIMEOUT=5 min is no whole number"):
        next(steps)
