"""Sends and receives that belong together and do not fit."""

from __future__ import annotations

from npu_plugins.diagnostics.hang.dump import Call
from npu_plugins.diagnostics.hang.findings import Cause
from npu_plugins.diagnostics.hang.history import History, describe, elements, plain_op
from npu_plugins.diagnostics.hang.places import Source, frame_text, users_frames
from npu_plugins.diagnostics.hang.waits import peer_of

_MEND = {
    "shape": "Let both sides have the same number of elements: the receiver's buffer is made before it knows "
    "what is sent, so send the shape first, or pad to one length.",
    "dtype": "Let both sides have one dtype: make the receiver's buffer in the sender's.",
}


def find_unlike_pairs(history: History, source: Source) -> list[Cause]:
    """Return the pairs of ranks whose first open send and receive differ in dtype or number of elements."""
    found = []
    for sender in history.dumps:
        sent = next((call for call in history.open_calls(sender) if call.p2p), None)
        if sent is None or plain_op(sent.op) != "send":
            continue
        receiver = peer_of(history, sender, sent)
        received = None if receiver is None else _answer(history, sender, receiver, sent)
        if receiver is None or received is None:
            continue
        aspect = _difference(sent, received)
        if aspect:
            found.append(_cause(aspect, (sender, sent), (receiver, received), source))
    return found


def _answer(history: History, sender: int, receiver: int, sent: Call) -> Call | None:
    """Return the receiver's first open point-to-point call, if it is the one for what was sent."""
    if receiver not in history.dumps:
        return None
    first = next(
        (call for call in history.open_calls(receiver) if call.p2p and call.group == sent.group), None
    )
    fits = first is not None and plain_op(first.op) == "recv" and peer_of(history, receiver, first) == sender
    return first if fits else None


def _difference(sent: Call, received: Call) -> str:
    into = received.output_dtypes or received.input_dtypes
    if sent.input_dtypes and into and sent.input_dtypes != into:
        return "dtype"
    return "shape" if elements(sent) != elements(received) else ""


def _cause(aspect: str, sending: tuple[int, Call], receiving: tuple[int, Call], source: Source) -> Cause:
    told = []
    for (rank, call), verb in ((sending, "sends"), (receiving, "receives")):
        frames = users_frames(call.stack)
        place = f" at {frame_text(frames[0], source)}" if frames else ""
        told.append(f"rank {rank} {verb} {describe(call)}{place}")
    ranks = (sending[0], receiving[0])
    return Cause(
        aspect,
        tuple(sorted(ranks)),
        f"R{told[0][1:]}, but {told[1]} from it.",
        _MEND[aspect],
        min(sending[1].created, receiving[1].created),
    )
