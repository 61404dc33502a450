"""One process for each rank, with one thread, and what rank 0 tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SECONDS = 900


def run_ranks(script: str, arguments: list[str], ranks: int, environment: dict[str, str]) -> dict[str, Any]:
    """Start ``script`` once for each rank and return the figures that rank 0 wrote.

    Each is called with ``arguments`` and ``--rank``, ``--store`` (a file for the ranks to meet) and
    ``--json`` (where rank 0 writes its figures). ``environment`` is added to this process's, without NPU_SIM.

    Raises:
        SystemExit: a rank failed; its error has been printed.
    """
    whole = {**os.environ, "OMP_NUM_THREADS": "1"}
    whole.pop("NPU_SIM", None)
    whole.update(environment)
    with tempfile.TemporaryDirectory(prefix=f"{Path(script).stem}-") as folder:
        output = Path(folder, "figures.json")
        command = [sys.executable, script, *arguments, "--json", str(output), "--store", f"{folder}/store"]
        started = [
            subprocess.Popen(
                [*command, "--rank", str(rank)], env={**whole, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            )
            for rank in range(ranks)
        ]
        try:
            codes = [rank.wait(timeout=SECONDS) for rank in started]
        finally:
            for rank in started:
                rank.kill()
        if any(codes):
            raise SystemExit(f"a rank of {Path(script).name} failed ({codes}); its error is above.")
        return json.loads(output.read_text())
