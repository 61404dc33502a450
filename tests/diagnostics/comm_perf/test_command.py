"""The command line: nccl-tests' flags mean what they mean there, others are refused by name."""

from __future__ import annotations

import argparse
import re
from typing import Any

import pytest

from npu_plugins.cli import _parser, main
from npu_plugins.diagnostics import DiagnosticsError
from npu_plugins.diagnostics.comm_perf.commands import request_of
from npu_plugins.diagnostics.comm_perf.sizes import bytes_of, parameters_of, sizes_between


def options(*words: str) -> argparse.Namespace:
    """The arguments as the command gets them."""
    return _parser().parse_args(["comm-perf", *words])


def test_the_documented_line_measures_sizes_by_a_factor() -> None:
    request = request_of(options("-b", "8", "-e", "64M", "-f", "2", "-g", "2", "--op", "all_reduce"))
    assert request.sizes == [2**power for power in range(3, 27)]
    assert [each.name for each in request.collectives] == ["all_reduce"]
    assert (request.dtypes, request.reductions, request.root) == (["float"], ["sum"], 0)
    assert (request.repeats.timed, request.repeats.warmup, request.repeats.checked) == (20, 1, 1)


def test_every_flag_reaches_the_request() -> None:
    words = "-b 1K -e 3K -i 1K -o max -d fp16 -r all -n 3 -w 2 -c 0 -a 3 -C 1 --op alltoall,scatter"
    request = request_of(options(*words.split()))
    assert list(request.sizes) == [1024, 2048, 3072]
    assert (request.dtypes, request.reductions, request.root, request.average) == (["half"], ["max"], None, 3)
    assert vars(request.repeats) == {"timed": 3, "warmup": 2, "checked": 0, "cpu_time": True}
    assert [each.name for each in request.collectives] == ["all_to_all", "scatter"]
    assert request.strict
    assert not request_of(options("--op", "all")).strict
    assert len(request_of(options("-d", "all")).dtypes) == 10


def test_buckets_measure_what_they_need() -> None:
    request = request_of(options("--buckets", "7B"))
    assert [each.name for each in request.collectives] == ["all_reduce", "all_gather", "reduce_scatter"]
    assert request.dtypes == ["bfloat16"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("-b 64M -e 8", "Sizes from 67108864 to 8 bytes (-b, -e) are none"),
        ("-b 0 -e 8", "Sizes from 0 to 8 bytes"),
        ("-f 2 -i 8", "two ways from one size to the next"),
        ("-f 1", "Sizes do not grow by factor 1 (-f)"),
        ("-b 8x", "'8x' is no size in bytes"),
        ("-n 0", "--iters 0 is less than 1"),
        ("-c -1", "--check -1 is less than 0"),
        ("-b 8 -e " + 400 * "9" + "x", "9x' is no size in bytes"),
        ("-T inf", "A wait of inf seconds (-T) is none"),
        ("-r ²", "Root '²' (-r) is no rank"),
        ("-T 0", "A wait of 0.0 seconds (-T) is none"),
        ("-r two", "Root 'two' (-r) is no rank"),
        ("--op sum", "the reduction is -o or --redop"),
        ("-o all_reduce", "the collective is --op"),
        ("-d quad", "There is no dtype 'quad' (-d)"),
        ("--buckets 7B --op all_reduce", "--op all_reduce leaves out all_gather, reduce_scatter; add it"),
        ("--buckets 7B -d all", "of one dtype, reduction and root, but -d all is given"),
        ("--links f -o all", "of one dtype, reduction and root, but -o all is given"),
    ],
)
def test_what_has_no_meaning_is_refused_before_a_rank_starts(words: str, told: str) -> None:
    with pytest.raises(DiagnosticsError, match=re.escape(told)):
        request_of(options(*words.split()))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--backend gloo -g 4 --tp 3", "tp=3 × pp=1 does not divide 4 ranks"),
        ("--backend gloo -g 4 --tp 2 --axis pp", "--axis pp has nothing to measure"),
        ("--backend gloo --axis sp", "--axis sp has nothing to measure: the mesh of 2 ranks is tp 1 × dp 2"),
        ("--backend gloo -g 0", "0 ranks cannot be started"),
        ("--backend gloo --csv nowhere/rows.csv", "nowhere/rows.csv cannot be written: nowhere must be"),
        ("--backend gloo --links .", ". cannot be written"),
        ("--backend gloo --plot curve.foo", "let its name end in .png, .svg or .pdf"),
        ("--backend smoke", "knows no backend 'smoke'"),
    ],
)
def test_ranks_that_make_no_such_mesh_are_not_started(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["comm-perf", *words.split()]) == 1
    assert told in capsys.readouterr().err


def test_flags_of_nccl_tests_that_mean_nothing_here_are_refused_by_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options("-t", "1", "-G", "0", "--parallel_init", "0")  # what asks for nothing is done
    for words, told in (
        (
            ("-t", "2"),
            "-t/--nthreads 2 is not done here: each rank is a process with one device; start more ranks with "
            "-g\n",
        ),
        (
            ("--cudagraph", "3"),
            "-G/--cudagraph 3 is not done here: collectives are not captured into graphs; leave it out\n",
        ),
    ):
        assert main(["comm-perf", *words]) == 1
        assert capsys.readouterr().err == f"npu-plugins: error: {told}"  # one sentence, no usage


def test_started_ranks_repeat_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from npu_plugins.diagnostics.comm_perf import commands

    started: list[Any] = []
    monkeypatch.setattr(
        commands, "run_local_ranks", lambda command, ranks: started.append((command, ranks)) or 7
    )
    assert main(["comm-perf", "--backend", "gloo", "-g", "3", "-b", "8", "-e", "8"]) == 7
    ((command, ranks),) = started
    assert ranks == 3
    assert command[-8:] == ["--backend", "gloo", "-g", "3", "-b", "8", "-e", "8"]


def test_sizes_and_counts_are_read_as_people_write_them() -> None:
    assert [bytes_of(text) for text in ("8", "32K", "64M", "1.5G", "2kb")] == [
        8,
        2**15,
        2**26,
        3 * 2**29,
        2048,
    ]
    assert [parameters_of(text) for text in ("7B", "1.5m", "124000000")] == [7 * 10**9, 1500000, 124000000]
    with pytest.raises(DiagnosticsError, match="no number of parameters"):
        parameters_of("many")
    assert list(sizes_between(8, 20, step=5, factor=None)) == [8, 13, 18]
    assert list(sizes_between(2**20, 3 * 2**20, step=None, factor=None)) == [2**20, 2**21, 3 * 2**20]
