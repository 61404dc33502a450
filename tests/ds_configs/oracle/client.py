"""Asks the oracle's process, which keeps torch and transformers out of the tests' own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


class Oracle:
    """A process that answers one JSON line with another; it starts with the first question."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, question: str, **details: Any) -> Any:
        """Return the answer to ``question``; see `tests.ds_configs.oracle.program`."""
        process = self._process = self._process or self._start()
        assert process.stdin and process.stdout
        print(json.dumps({"question": question, **details}), file=process.stdin, flush=True)
        line = process.stdout.readline()
        assert line, f"the oracle ended with status {process.wait()}"
        return json.loads(line)

    def deepspeed(self, config: dict[str, Any], replicas: int = 1) -> str:
        """Return what DeepSpeedConfig says against ``config`` on so many replicas; "" for nothing."""
        return self.ask("deepspeed", config=config, replicas=replicas)

    def close(self) -> None:
        """End the process."""
        if self._process:
            self._process.kill()  # it holds nothing, and to leave torch takes it seconds
            self._process.wait()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.ds_configs.oracle.program"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
