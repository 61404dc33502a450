"""Ranks that are not ready for a training which asks for that first, and a link that is not."""

from __future__ import annotations

import random
import sys
import time
from types import MappingProxyType

import torch
import torch.distributed as dist

from ds_configs.parallel import ParallelConfig
from npu_plugins.comm import ProcessMesh
from npu_plugins.diagnostics.preflight import Preflight, Report, Settings, facts_of, random_facts
from tests.diagnostics.faults.injected import VICTIM
from tests.diagnostics.faults.training import Job

LIMIT = 30.0


def tell(report: Report) -> None:
    """Print what was found."""
    print(report.text(), file=sys.stderr, flush=True)


class Preflighted(Job):
    """A job that begins with a preflight over its configuration, its random numbers and its links."""

    def learning_rate(self) -> float:
        """Of the configuration."""
        return 1e-2

    def seed(self) -> int:
        """Of all generators."""
        return 1

    def train(self) -> list[float]:
        """Train if all ranks are ready."""
        random.seed(self.seed())
        torch.manual_seed(self.seed())
        config = {"optimizer": {"type": "AdamW", "params": {"lr": self.learning_rate()}}, "steps": 6}
        store = dist.distributed_c10d._get_default_store().clone()
        degrees = ParallelConfig(dp=dist.get_world_size())
        print(f"fault at {time.time():.3f}", flush=True)  # it is there from the beginning
        flight = Preflight(store, self.rank, degrees, Settings(limit=LIMIT), tell)
        flight.meet()
        flight.compare("configuration", facts_of("config", config, "give all ranks the same file"))
        flight.compare("seeds", random_facts(torch.device(self.device)))
        mesh = flight.communicate(lambda: ProcessMesh.create(degrees, device=self.device))
        flight.finish()
        mesh.destroy()
        return super().train()


class OtherConfig(Preflighted):
    """One rank has read an older file."""

    def learning_rate(self) -> float:
        """Of that file."""
        return 1e-3 if self.rank == VICTIM else 1e-2


class OtherSeed(Preflighted):
    """One rank adds its number to the seed."""

    def seed(self) -> int:
        """Of this rank."""
        return 2 if self.rank == VICTIM else 1


class SlowLink(Preflighted):
    """All ranks are ready; run with `SLOW_LINK` in the environment."""


SLOW_LINK = (("NPU_SIM_SLOW_LINK", "1-2:40"),)
UNREADY = MappingProxyType(
    {"other_config": OtherConfig, "other_seed": OtherSeed, "slow_link": SlowLink, "preflight": Preflighted}
)
