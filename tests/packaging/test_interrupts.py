"""Ctrl-C ends both commands quietly, also while they import what they need and while Python ends."""

from __future__ import annotations

import importlib
import signal

import pytest

from tests.packaging.interpreter import run_python

commands = pytest.mark.parametrize(
    ("module", "arguments"), [("ds_configs.cli", ["list"]), ("npu_plugins.cli", ["explain", "EI0002"])]
)


@commands
def test_while_a_command_is_imported(
    monkeypatch: pytest.MonkeyPatch, module: str, arguments: list[str]
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    cli = importlib.import_module(module)
    monkeypatch.setattr(cli, "import_module", interrupted)
    assert cli.main(arguments) == 130


@commands
def test_while_the_interpreter_ends(module: str, arguments: list[str]) -> None:
    program = (
        "import atexit, os, signal, sys\n"
        f"from {module} import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "sys.exit(main())\n"
    )
    ran = run_python("-c", program, *arguments)
    assert (ran.returncode, ran.stderr) == (-signal.SIGINT, "")
    assert ran.stdout


@commands
def test_an_ignored_interrupt_stays_ignored(module: str, arguments: list[str]) -> None:
    """As of what nohup or a shell's background runs."""
    program = (
        "import atexit, os, signal, sys\n"
        f"from {module} import main\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "sys.exit(main())\n"
    )
    assert run_python("-c", program, *arguments).returncode == 0


def test_a_caller_in_python_keeps_its_handler() -> None:
    from ds_configs.cli import main

    before = signal.getsignal(signal.SIGINT)
    assert main(["list"]) == 0
    assert signal.getsignal(signal.SIGINT) is before
