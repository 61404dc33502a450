"""`npu-plugins pipeline`: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from npu_plugins.cli import main


def test_show_draws_the_timeline_and_says_what_it_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "show", "--schedule", "1f1b", "-p", "2", "-m", "3"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1f1b, 2 ranks, 3 micro-batches; time ->",
        "NPU0: [F0][F1]        [B0    ][F2][B1    ]    [B2    ]",
        "NPU1:     [F0][B0    ][F1][B1    ][F2][B2    ]",
        "time 12, of which each rank idles 3 (25.0%); 3 between a rank's first and last action",
        "activations kept at most, by rank: 2 1",
        "sends and receives, by rank: 6 6",
    ]


def test_show_prints_the_actions_with_their_transfers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "show", "--schedule", "1f1b", "-p", "2", "-m", "2", "--actions"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "rank 0: F0@0 [SA0@0>1] F1@0 [SA1@0>1 RG0@0<1] B0@0 [RG1@0<1] B1@0",
        "rank 1: [RA0@1<0] F0@1 [RA1@1<0] B0@1 [SG0@1>0] F1@1 B1@1 [SG1@1>0]",
    ]


def test_show_writes_a_picture_and_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, trace = tmp_path / "a.svg", tmp_path / "a.json"
    command = f"pipeline show --schedule zb-v -p 4 -m 8 --svg {picture} --trace {trace}"
    assert main(command.split()) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [f"written: {picture}", f"written: {trace}"]
    actions = 4 * 2 * 8 * 3
    assert len(ElementTree.parse(picture).getroot().findall("{http://www.w3.org/2000/svg}g")) == actions
    assert sum(event["ph"] == "X" for event in json.loads(trace.read_text())["traceEvents"]) == actions


def test_compare_puts_all_schedules_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "compare", "-p", "4", "-m", "8"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[2:]] == [
        ["gpipe", "1", "33", "9", "27.3%", "9", "8", "32"],
        ["1f1b", "1", "33", "9", "27.3%", "9", "4", "32"],
        ["interleaved", "2", "28.5", "4.5", "15.8%", "4.5", "5.5", "64"],
        ["zb-h1", "1", "27", "3", "11.1%", "3", "4", "32"],
        ["zb-v", "2", "25.5", "1.5", "5.9%", "0", "4", "64"],
        ["dualpipe-v", "2", "25.5", "1.5", "5.9%", "1.5", "4.5", "64"],
    ]


def test_compare_names_the_schedules_that_need_other_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            ["pipeline", "compare", "-p", "4", "-m", "6", "-v", "3", "--forward", "1/2", "--transfer", "0.1"]
        )
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["gpipe", "1f1b", "zb-h1", "zb-v"]
    assert lines[6] == "left out:"
    assert "interleaved on 4 ranks needs micro-batches in multiples of 4, not 6: use 4 or 8" in lines[7]
    assert "dualpipe-v on 4 ranks needs 8 micro-batches or more, not 6" in lines[8]


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("show --schedule zb -p 4 -m 8", "there is no schedule 'zb'; choose one of gpipe, 1f1b"),
        ("show --schedule dualpipe-v -p 4 -m 4", "needs 8 micro-batches or more, not 4"),
        ("show --schedule 1f1b -p 2 -m 4 -v 2", "1f1b has 1 stage on each rank, not 2"),
        ("show --schedule 1f1b -p 2 -m 4 --forward x", "--forward x is no time: give a number such as 1"),
        ("compare -p 2 -m 4 --weight-gradient=-1", "--weight-gradient -1 is no time"),
        ("compare -p 0 -m 4", "ranks=0: give a whole number, 1 or more"),
        (
            "show --schedule 1f1b -p 2 -m 4 --svg /no/folder/x.svg",
            "cannot write /no/folder/x.svg: No such file",
        ),
    ],
)
def test_what_cannot_be_shown_ends_in_one_sentence(
    command: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", *command.split()]) == 1
    error = capsys.readouterr().err
    assert error.startswith("npu-plugins: error: ")
    assert sentence in error
    assert error.count("\n") == 1


def test_the_commands_start_without_torch() -> None:
    code = (
        "import sys; from npu_plugins.cli import main; "
        "main('pipeline compare -p 4 -m 8'.split()); "
        "main('pipeline show --schedule zb-v -p 2 -m 4'.split()); "
        "print([name for name in ('torch', 'deepspeed', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"


def readme_commands() -> list[tuple[str, str]]:
    """The commands of this package that README shows, each with the output below it."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n(.*?)```", readme, re.DOTALL)
    parts = [part for block in blocks for part in block.split("$ ")[1:]]
    shown = [tuple(part.split("\n", 1)) for part in parts if part.startswith("npu-plugins pipeline")]
    assert shown
    return shown


@pytest.mark.parametrize(("command", "output"), readme_commands())
def test_readme_shows_what_the_commands_print(
    command: str, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(command.split()[1:])
    printed = capsys.readouterr()
    assert printed.out + printed.err == output


def test_readmes_example_prints_what_its_comments_say(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    [example] = [
        block for block in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "build_schedule" in block
    ]
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"# (.*)", example)


def test_times_in_thirds_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "show", "--schedule", "eval", "-p", "4", "-m", "8", "-v", "3"]) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "time 9, of which each rank idles 1 (11.1%); 0 between a rank's first and last action",
        "activations kept at most, by rank: 0.3333 0.3333 0.3333 0.3333",
        "sends and receives, by rank: 40 48 48 40",
    ]
