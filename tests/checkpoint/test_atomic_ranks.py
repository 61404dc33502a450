"""A run's checkpoints on several ranks: written together, failed together, and never lost to `kill -9`."""

from __future__ import annotations

import random
import resource
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ds_configs.parallel import ParallelConfig
from npu_plugins.checkpoint import CheckpointError, latest_good, save_checkpoint
from npu_plugins.checkpoint.atomic import find_faults
from npu_plugins.checkpoint.ranks import Ranks
from tests.checkpoint.folders import shared_folder
from tests.harness.fixtures import on_ranks
from tests.harness.pool import RankPool, World
from tests.tensor_parallel.test_sharding import make_mesh

FILES = 25


def shard(step: int, rank: int, number: int) -> bytes:
    """The content of one of a rank's files."""
    return f"step {step}, rank {rank}, file {number};".encode() * 300


def write_shards(mesh: Any, step: int, folder: Path) -> None:
    own = folder / f"rank-{mesh.global_rank}"
    own.mkdir()
    for number in range(FILES):
        (own / f"{number}.bin").write_bytes(shard(step, mesh.global_rank, number))


def check_shards(path: Path, step: int, ranks: int) -> None:
    for rank in range(ranks):
        for number in range(FILES):
            assert (path / f"rank-{rank}" / f"{number}.bin").read_bytes() == shard(step, rank, number)


def refused(call: Any) -> str:
    try:
        call()
    except CheckpointError as error:
        assert "\n" not in str(error)
        return str(error)
    raise AssertionError("not refused")


def check_saving_together(mesh: Any) -> None:
    folder = shared_folder(mesh)
    path = save_checkpoint(folder, 3, lambda into: write_shards(mesh, 3, into), model="m", mesh=mesh)
    check_shards(path, 3, dist.get_world_size())
    good = latest_good(folder, mesh)
    assert good is not None
    assert (good.path, good.manifest.layout.parallel) == (path, ParallelConfig(dp=dist.get_world_size()))
    assert len(good.manifest.files) == FILES * dist.get_world_size()
    dist.barrier()
    if mesh.global_rank == 0:
        (path / "rank-1" / "7.bin").write_bytes(b"")
        (path / "rank-0" / "3.bin").unlink()
    dist.barrier()
    faults = find_faults(path, mesh)
    assert sorted(fault.split()[0] for fault in faults) == ["rank-0/3.bin", "rank-1/7.bin"]
    assert latest_good(folder, mesh) is None


def check_one_rank_fails(mesh: Any) -> None:
    """Any rank, for any reason: all of them raise, nothing is renamed, what was there is there."""
    folder, ranks_own = shared_folder(mesh), mesh.global_rank
    save_checkpoint(folder, 1, lambda into: write_shards(mesh, 1, into), model="m", mesh=mesh)
    told = refused(lambda: save_checkpoint(folder, ranks_own, print, model="m", mesh=mesh))
    assert told.startswith("the ranks save steps [0, 1")
    for bad in range(dist.get_world_size()):

        def write(into: Path, bad: int = bad) -> None:
            write_shards(mesh, 2, into)
            if mesh.global_rank == bad:
                raise ValueError("no such\noptimizer")

        told = refused(lambda write=write: save_checkpoint(folder, 2, write, model="m", mesh=mesh))
        assert f"rank {bad}: ValueError: no such optimizer;" in told
        dist.barrier()
        assert [path.name for path in folder.iterdir()] == ["checkpoint-1"]
        good = latest_good(folder, mesh)
        assert good is not None
        check_shards(good.path, 1, dist.get_world_size())
        dist.barrier()


def check_disk_full(mesh: Any) -> None:
    """One rank's disk takes no more than some bytes: the system refuses, as a full one does."""
    folder = shared_folder(mesh)
    save_checkpoint(folder, 1, lambda into: write_shards(mesh, 1, into), model="m", mesh=mesh)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if mesh.global_rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(shard(2, 1, 0)) // 2, hard))
    try:
        told = refused(
            lambda: save_checkpoint(
                folder, 2, lambda into: write_shards(mesh, 2, into), model="m", mesh=mesh, save_total_limit=1
            )
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "rank 1: OSError: [Errno 27] File too large" in told
    assert "make room, or lower save_total_limit" in told
    dist.barrier()
    assert [path.name for path in folder.iterdir()] == ["checkpoint-1"]
    assert latest_good(folder, mesh) is not None
    save_checkpoint(folder, 3, lambda into: write_shards(mesh, 3, into), model="m", mesh=mesh)
    assert latest_good(folder, mesh).manifest.step == 3  # type: ignore[union-attr]


def check_telling(mesh: Any) -> None:
    ranks = Ranks(mesh)
    told = ranks.tell({"rank": ranks.rank, "text": "é" * (50 * ranks.rank)})
    assert told == [{"rank": rank, "text": "é" * (50 * rank)} for rank in range(ranks.size)]
    assert ranks.first("mine" if ranks.rank == 0 else "another's") == "mine"
    sizes = {f"{number}": number * 10 for number in range(20)}
    shares = ranks.tell(ranks.share(sizes))
    assert sorted(name for share in shares for name in share) == sorted(sizes)
    loads = [sum(sizes[name] for name in share) for share in shares]
    assert max(loads) - min(loads) <= 200


def all_checks() -> None:
    mesh = make_mesh(1, dp=dist.get_world_size())
    check_telling(mesh)
    check_saving_together(mesh)
    check_one_rank_fails(mesh)
    check_disk_full(mesh)


@on_ranks(3, backend="gloo")
def test_ranks_save_together() -> None:
    all_checks()


@on_ranks(2)
def test_ranks_save_together_on_npus() -> None:
    all_checks()


def save_until_killed(folder: str, saving: str) -> None:
    """Find the last good checkpoint, check every byte of it, and save step after step."""
    directory, done = Path(folder), Path(folder).with_name("done")
    mesh = make_mesh(1, dp=2)
    last = int(done.read_text()) if done.exists() else 0
    good = latest_good(directory, mesh)
    step = 0 if good is None else good.manifest.step
    assert step >= last, f"checkpoint {last} was complete, but {step} is the last good one"
    if good is not None:
        check_shards(good.path, step, 2)
    dist.barrier()
    Path(saving).touch()
    while True:
        step += 1
        write = partial(write_shards, mesh, step)
        save_checkpoint(directory, step, write, model="m", mesh=mesh, save_total_limit=2)
        if mesh.global_rank == 0:
            done.with_suffix(".new").write_text(str(step))
            done.with_suffix(".new").rename(done)


def kill_while_saving(world: World, saving: Path, victims: list[int], seconds: float) -> None:
    """Wait until the ranks are saving, then `kill -9` some of them after a time."""
    deadline = time.monotonic() + 30
    while not saving.exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(seconds)
    for rank in victims:
        world.signal(signal.SIGKILL, rank)


def test_kill_9_while_saving_never_costs_the_last_good_checkpoint(
    rank_pool: RankPool, tmp_path: Path
) -> None:
    chance = random.Random(20261130)
    directory, done = tmp_path / "run", tmp_path / "done"
    half_way = []
    with rank_pool.world(2, "gloo") as world:
        world.grace = 0.1
        for turn in range(20):
            saving = tmp_path / f"saving-{turn}"
            victims, seconds = chance.choice([[0], [1], [0, 1]]), chance.uniform(0, 0.5)
            killer = threading.Thread(target=kill_while_saving, args=(world, saving, victims, seconds))
            killer.start()
            outcomes = world.outcomes(save_until_killed, str(directory), str(saving))
            killer.join()
            assert any(outcome.kind == "died" for outcome in outcomes), [each.text for each in outcomes]
            wrong = [outcome.text for outcome in outcomes if "AssertionError" in outcome.text]
            assert not wrong, wrong
            assert saving.exists(), [outcome.text for outcome in outcomes]
            half_way.append(any(directory.glob(".*")))
            world.restart()
        assert sum(half_way) >= 3, f"in the middle of a save: {half_way}"
        assert int(done.read_text()) >= 1, "some saves were completed"
