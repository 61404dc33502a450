"""Ranks of one tensor-parallel group work on the same batch: making it so, and checking that it is."""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

import torch
import torch.distributed as dist

from npu_plugins.comm.errors import CommError
from npu_plugins.comm.mesh import ProcessMesh
from npu_plugins.comm.structure import as_bytes, first_difference, put_together, slots, take_apart, walk

ALIGNMENT = 32
"""Bytes that each tensor's start is a multiple of, so that its bytes can be seen as any dtype."""

MEND = (
    "ranks of one {axis} group need the same samples: give the sampler num_replicas=mesh.size('dp') and "
    "rank=mesh.rank('dp'), or use broadcast_batch(batch, mesh)"
)


def broadcast_batch(batch: Any, mesh: ProcessMesh, *, axis: str = "tp") -> Any:
    """Return the batch of the group's first rank on every rank of the group, on `mesh.device`.

    Two broadcasts whatever the batch holds: its size, then structure and tensors as one run of bytes, so that
    every bit arrives.

    Args:
        batch: nested dicts, lists and tuples of tensors and plain values (None, numbers, strings). Only the
            first rank's is looked at; the others may give None. Other mappings, such as transformers'
            BatchEncoding, come back as dicts. Tensors have any shape and dtype and lie on any device;
            gradients are not tracked.
        mesh: whose group along `axis` shares the batch.
        axis: ``tp``, or ``model`` to reach all pipeline stages too.

    Raises:
        CommError: on every rank of the group, if the first one's batch cannot be sent.
    """
    group = mesh.group(axis)
    if group is None or mesh.rank(axis) == 0:
        return _send(batch, mesh, group, axis)
    return _receive(mesh, group, axis)


def check_same_batch(batch: Any, mesh: ProcessMesh, *, axis: str = "tp") -> None:
    """Raise on every rank of the group unless all of them were given the same batch, to the bit.

    Digests are compared; the batches themselves are sent only when these differ. The batch is copied to the
    host once, so call it for the first steps or when in doubt rather than for every step.

    Args:
        batch: as for `broadcast_batch`; keys may come in any order.
        mesh: whose group along `axis` shares the batch.
        axis: ``tp``, or ``model`` to compare all pipeline stages too.

    Raises:
        CommError: names the first key that differs, a rank that has it otherwise, and both values.
    """
    group = mesh.group(axis)
    problem, digest = None, b""
    try:
        digest = _digest(batch)
    except Exception as error:  # whatever it is, the others wait for this rank and are told
        if group is None:
            raise
        problem = f"On rank {mesh.global_rank}, {error}"
    if group is None:
        return
    # Zeros stand for a batch that cannot be compared; as a real digest they have odds of 2 to the -128.
    mine = torch.frombuffer(bytearray(digest or bytes(16)), dtype=torch.uint8).to(mesh.device)
    all_of_them = [torch.empty_like(mine) for _ in range(mesh.size(axis))]
    dist.all_gather(all_of_them, mine, group=group)
    digests = {bytes(each.tolist()) for each in all_of_them}
    if len(digests) == 1 and bytes(16) not in digests:
        return
    raise CommError(_first_problem(batch, mesh, group, axis, problem, comparable=bytes(16) not in digests))


def _first_problem(
    batch: Any, mesh: ProcessMesh, group: dist.ProcessGroup, axis: str, problem: str | None, comparable: bool
) -> str:
    """Find out what is wrong, together with the other ranks, and return the same sentence on all of them."""
    if comparable:
        first = broadcast_batch(batch, mesh, axis=axis)
        found = first_difference(batch, first)
        if found:
            where, mine, theirs = found
            source = mesh.ranks(axis)[0]
            here = mesh.global_rank
            problem = (
                f"{where} is {mine} on rank {here}, but {theirs} on rank {source}; {MEND.format(axis=axis)}"
            )
    problems: list[str | None] = [None] * mesh.size(axis)
    dist.all_gather_object(problems, problem, group=group)
    return next(each for each in problems if each)


def _digest(batch: Any) -> bytes:
    """16 bytes that are equal for equal batches, whatever the order of keys and the devices of tensors."""
    found = hashlib.blake2b(digest_size=16)
    for where, leaf in sorted(walk(batch), key=lambda pair: pair[0]):
        if isinstance(leaf, torch.Tensor):
            found.update(f"{where}: {leaf.dtype} {tuple(leaf.shape)};".encode())
            found.update(as_bytes(leaf.cpu()).numpy())
        else:
            found.update(f"{where}: {type(leaf).__name__} {leaf!r};".encode())
    return found.digest()


def _send(batch: Any, mesh: ProcessMesh, group: dist.ProcessGroup | None, axis: str) -> Any:
    try:
        skeleton, tensors = take_apart(batch)
        tensors = [tensor.to(mesh.device) for tensor in tensors]
        header = pickle.dumps(skeleton) if group is not None else b""
    except Exception as error:  # whatever it is, the others wait for this rank and are told
        refusal = CommError(f"Rank {mesh.global_rank} cannot broadcast its batch: {error}")
        if group is not None:
            _broadcast(pickle.dumps(refusal), [], mesh, group, axis)
        raise refusal from error
    if group is not None:
        _broadcast(header, tensors, mesh, group, axis)
    return put_together(skeleton, iter(tensors))


def _broadcast(
    header: bytes, tensors: list[torch.Tensor], mesh: ProcessMesh, group: dist.ProcessGroup, axis: str
) -> None:
    pieces = [torch.frombuffer(bytearray(header), dtype=torch.uint8).to(mesh.device)]
    pieces += [as_bytes(tensor) for tensor in tensors]
    payload = torch.cat([torch.nn.functional.pad(piece, (0, -piece.numel() % ALIGNMENT)) for piece in pieces])
    source = mesh.ranks(axis)[0]
    sizes = torch.tensor([len(header), payload.numel()], dtype=torch.int64, device=mesh.device)
    dist.broadcast(sizes, source, group=group)
    dist.broadcast(payload, source, group=group)


def _receive(mesh: ProcessMesh, group: dist.ProcessGroup, axis: str) -> Any:
    source = mesh.ranks(axis)[0]
    sizes = torch.empty(2, dtype=torch.int64, device=mesh.device)
    dist.broadcast(sizes, source, group=group)
    header_size, payload_size = sizes.tolist()
    payload = torch.empty(payload_size, dtype=torch.uint8, device=mesh.device)
    dist.broadcast(payload, source, group=group)
    # Pickled by a rank of this job, which runs the same program: no more trusted than the program itself.
    skeleton = pickle.loads(payload[:header_size].cpu().numpy().tobytes())
    if isinstance(skeleton, CommError):
        raise skeleton
    tensors, start = [], _aligned(header_size)
    for slot in slots(skeleton):
        piece = payload[start : start + slot.nbytes]
        # A copy each: views of one buffer share its version counter, and autograd would take a change of one
        # for a change of all.
        tensors.append(piece.view(slot.dtype).view(slot.shape).clone())
        start += _aligned(slot.nbytes)
    return put_together(skeleton, iter(tensors))


def _aligned(size: int) -> int:
    return size + -size % ALIGNMENT
