"""The user's own line is found among a library's, and what it waits in."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_plugins.diagnostics.hang.dump import Frame
from npu_plugins.diagnostics.hang.places import inside, line_text, read_line, users_frames, waits_in

SITE = "/venv/lib/python3.11/site-packages"
USER = Frame("/home/user/train.py", 26, "step")
C10D = Frame(f"{SITE}/torch/distributed/distributed_c10d.py", 99, "all_reduce")
WRAPPER = Frame(f"{SITE}/torch/distributed/c10d_logger.py", 83, "wrapper")
BACKWARD = Frame(f"{SITE}/torch/autograd/graph.py", 9, "_engine_run_backward")
QUEUE = Frame("/usr/lib/python3.11/threading.py", 327, "wait")
OURS = Frame("/src/npu_plugins/pipeline/engine.py", 5, "train_batch")
TRAIN = Frame("/src/hf_integration/train.py", 7, "main")


def test_library_frames_are_left_out() -> None:
    assert users_frames((C10D, WRAPPER, OURS, USER, QUEUE)) == (USER,)


def test_a_program_of_this_package_has_frames_of_its_own() -> None:
    assert users_frames((C10D, OURS, TRAIN)) == (OURS, TRAIN)
    assert users_frames((C10D, WRAPPER)) == (C10D, WRAPPER)


def test_the_function_that_the_users_line_called_is_told() -> None:
    assert inside((C10D, WRAPPER, USER)) == "wrapper"
    assert inside((USER,)) == "" == inside(())


@pytest.mark.parametrize(
    ("stack", "line", "waits"),
    [
        ((C10D, WRAPPER, USER), "", "all_reduce"),
        ((BACKWARD, USER), "loss.backward()", "_engine_run_backward"),
        ((USER,), "total += loss.item()", "item"),
        ((USER,), "time.sleep(1000)", ""),
        ((QUEUE, USER), "batch = queue.get()", ""),
        ((Frame(USER.file, 3, "wait"), USER), "while not done: continue", ""),
        ((), "", ""),
    ],
)
def test_what_a_program_waits_in(stack: tuple[Frame, ...], line: str, waits: str) -> None:
    assert waits_in(stack, lambda frame: line) == waits


def test_files_below_are_told_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n  x = 1\n")
    frame = Frame(str(tmp_path / "train.py"), 2, "main")
    assert line_text(frame) == "train.py:2 in main" and read_line(frame) == "x = 1"
    assert line_text(USER) == "/home/user/train.py:26 in step"
    assert read_line(USER) == ""
