"""Is a checkpoint whole: every file it must have, each of the right size and form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from npu_plugins.checkpoint.errors import CheckpointError
from npu_plugins.checkpoint.files import DTYPES, INDEX_FILE, SINGLE_FILE, CheckpointFiles, read_header
from npu_plugins.checkpoint.kinds import (
    LAYER_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    UNIVERSAL_COMMON,
    UNIVERSAL_WEIGHT,
    Found,
    Kind,
    content_of,
    recognise,
)
from npu_plugins.checkpoint.manifest import MANIFEST_FILE, Fault, Manifest
from npu_plugins.checkpoint.sharded import INDEX, ShardedSource
from npu_plugins.checkpoint.streaming import TensorInfo
from npu_plugins.checkpoint.torch_files import SUFFIXES, damage, read_torch


def verify(directory: str | Path) -> list[Fault]:
    """Read a checkpoint through and return what is wrong, file by file; [] if nothing is.

    Of a checkpoint of ours: sizes and checksums of its manifest. Of all: that what an index lists is there,
    that safetensors files have the bytes that their headers say, that files of `torch.save` hold nothing but
    tensors and plain values and have the right checksums inside, that JSON can be read, that no rank's file
    is missing.

    Raises:
        CheckpointError: it is none that is known here.
    """
    found = recognise(directory)
    faults: dict[str, Fault] = {}
    if found.kind is Kind.OURS:
        try:
            for fault in Manifest.read(found.path).faults(found.path):
                faults.setdefault(fault.file, fault)
        except CheckpointError as error:
            faults[MANIFEST_FILE] = _fault(found.path, found.path / MANIFEST_FILE, error)
        held = content_of(found)
    else:
        held = found
    for fault in _single_files(found.path):
        faults.setdefault(fault.file, fault)
    if held is not None:
        for fault in _as_a_whole(held, found.path, set(faults)):
            faults.setdefault(fault.file, fault)
    return list(faults.values())


def _single_files(root: Path) -> Iterator[Fault]:
    """Files that are damaged by themselves."""
    for file in sorted(path for path in root.rglob("*") if path.is_file()):
        name = file.relative_to(root).as_posix()
        if file.name.endswith(SUFFIXES):
            problem = damage(file)
            if problem is not None:
                yield Fault(name, problem)
        elif file.suffix == ".safetensors":
            try:
                read_header(file)
            except CheckpointError as error:
                yield _fault(root, file, error)
        elif file.suffix == ".json":
            try:
                json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                yield Fault(name, f"is no JSON: {error}")


def _as_a_whole(held: Found, root: Path, bad: set[str]) -> Iterator[Fault]:
    """What is missing, or does not fit together; files of `bad` are known to be damaged by themselves."""
    checks: dict[Kind, Callable[[Path], Iterator[Fault]]] = {
        Kind.HUGGING_FACE: _hugging_face,
        Kind.SHARDED: _sharded,
        Kind.UNIVERSAL: _universal,
        Kind.ZERO: _zero,
        Kind.PIPELINE: _pipeline,
        Kind.TRAINING: _training,
    }
    before = held.path.relative_to(root).as_posix()
    prefix = "" if before == "." else f"{before}/"
    try:
        for fault in checks[held.kind](held.path):
            yield Fault(prefix + fault.file, fault.problem)
    except CheckpointError as error:
        # What a damaged file keeps from being looked at was told with that file.
        if not any(str(root / name) in str(error) for name in bad):
            yield _fault(root, held.path, error)


def _hugging_face(directory: Path) -> Iterator[Fault]:
    if not (directory / INDEX_FILE).is_file():
        CheckpointFiles.open(directory)
        return
    try:
        content = json.loads((directory / INDEX_FILE).read_text(encoding="utf-8"))
        weight_map = dict(content["weight_map"])
    except (ValueError, KeyError, TypeError) as error:
        yield Fault(INDEX_FILE, f"is no index of safetensors files ({type(error).__name__}: {error})")
        return
    held: dict[str, set[str]] = {}
    for file in dict.fromkeys(weight_map.values()):
        if not (directory / str(file)).is_file():
            yield Fault(str(file), f"is missing; {INDEX_FILE} lists it")
            continue
        try:
            held[file] = {stored.name for stored in read_header(directory / file)[0]}
        except CheckpointError as error:
            yield _fault(directory, directory / file, error)
    for file, names in held.items():
        listed = {name for name, where in weight_map.items() if where == file}
        if listed - names:
            yield Fault(file, f"lacks {min(listed - names)}{_more(listed - names)}, which {INDEX_FILE} lists")
        elif names - listed:
            extra = names - listed
            yield Fault(file, f"holds {min(extra)}{_more(extra)}, which {INDEX_FILE} does not list")
    if (directory / SINGLE_FILE).is_file() and SINGLE_FILE not in held:
        yield Fault(SINGLE_FILE, f"is there beside {INDEX_FILE}, which does not list it")


def _sharded(directory: Path) -> Iterator[Fault]:
    for file, expected in ShardedSource(directory).files().items():
        problem = _other_tensors(directory / file, expected, INDEX)
        if problem:
            yield Fault(file, problem)


def _other_tensors(file: Path, expected: Mapping[str, TensorInfo], index: str) -> str | None:
    """Say in what a file's header differs from what an index says of it."""
    if not file.is_file():
        return f"is missing; {index} lists it"
    try:
        stored = {each.name: TensorInfo(each.dtype, each.shape) for each in read_header(file)[0]}
    except CheckpointError as error:
        return str(error).removeprefix(f"{file} ")
    wrong = {name for name in {*expected, *stored} if expected.get(name) != stored.get(name)}
    return f"does not hold {min(wrong)}{_more(wrong)} as {index} says" if wrong else None


def _training(directory: Path) -> Iterator[Fault]:
    from npu_plugins.checkpoint import state  # imports DeepSpeed

    if any((directory / name).is_file() for name in (INDEX_FILE, SINGLE_FILE)):
        yield from _hugging_face(directory)
    folder = directory / state.STATE_FOLDER
    index = state.StateIndex.read(folder)
    whole = True
    for file, expected in index.files().items():
        infos = {name: TensorInfo(DTYPES[code], shape) for name, (code, shape) in expected.items()}
        problem = _other_tensors(folder / file, infos, state.INDEX_FILE)
        if problem:
            whole = False
            yield Fault(f"{state.STATE_FOLDER}/{file}", problem)
    if whole:
        reader = state.StateReader(directory)
        for name in index.parameters:
            reader.check(name)


def _universal(directory: Path) -> Iterator[Fault]:
    folders = {path.parent for path in (directory / "zero").rglob("*.pt") if path.name != UNIVERSAL_COMMON}
    names = {folder: {path.name for path in folder.glob("*.pt")} for folder in folders}
    usual = set().union(*names.values())
    for folder in sorted(folders):
        for missing in sorted(usual - names[folder]):
            # A frozen parameter has a weight alone.
            if missing == UNIVERSAL_WEIGHT or names[folder] != {UNIVERSAL_WEIGHT}:
                name = (folder / missing).relative_to(directory).as_posix()
                yield Fault(name, "is missing; other parameters have it")
    if not (directory / "zero" / UNIVERSAL_COMMON).is_file():
        yield Fault(f"zero/{UNIVERSAL_COMMON}", "is missing; DeepSpeed does not load without it")


def _zero(directory: Path) -> Iterator[Fault]:
    from npu_plugins.checkpoint.zero import ZeroFiles  # imports DeepSpeed, which other kinds do without

    files = ZeroFiles(directory)
    yield from _missing_ranks(directory, files.world, ["00"])
    if files.optimizer_files or files.stage3:
        files.pieces()


def _pipeline(directory: Path) -> Iterator[Fault]:
    names = {path.name for path in directory.iterdir()}
    places = sorted(match.group(2) for name in names if (match := MODEL_FILE.fullmatch(name)))
    if not places:
        yield Fault("mp_rank_00_model_states.pt", "is missing; every stage of a pipeline has such a file")
        return
    states = read_torch(directory / f"mp_rank_{places[0]}_model_states.pt")
    expected = [f"{place:02d}" for place in range(int(states["mp_world_size"]))]
    for place in expected:
        if place not in places:
            yield Fault(f"mp_rank_{place}_model_states.pt", f"is missing; {len(expected)} were written")
    yield from _missing_ranks(directory, int(states["dp_world_size"]), expected)
    layers = [match.groups() for name in names if (match := LAYER_FILE.fullmatch(name))]
    ranks = {rank for _, rank in layers}
    for layer in sorted({layer for layer, _ in layers}):
        for rank in sorted(ranks - {have for one, have in layers if one == layer}, key=str):
            yield Fault(f"layer_{layer}-model_{rank}-model_states.pt", "is missing; other layers have one")


def _missing_ranks(directory: Path, world: int, places: list[str]) -> Iterator[Fault]:
    """Optimizer files of ranks that are not there, where others are."""
    found = {}
    for path in directory.iterdir():
        match = OPTIMIZER_FILE.fullmatch(path.name)
        if match:
            found[int(match.group(1)), match.group(2)] = path.name
    for place in places if found else []:
        for rank in range(world):
            if (rank, place) not in found:
                prefix = next(iter(found.values())).partition("zero_pp")[0]
                name = f"{prefix}zero_pp_rank_{rank}_mp_rank_{place}_optim_states.pt"
                yield Fault(name, f"is missing; {world} ranks wrote such files")


def _fault(root: Path, file: Path, error: CheckpointError) -> Fault:
    name = file.relative_to(root).as_posix() if file != root else "the whole"
    return Fault(name, str(error).removeprefix(f"{file} "))


def _more(names: set[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
