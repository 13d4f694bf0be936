"""Initial weights and buffers of a replica: from a checkpoint, or drawn."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from simdp.arrays import Array
from simdp.errors import ScenarioError
from simdp.files import read_npz, read_tensors
from simdp.rng import TorchGenerator, stream
from simdp.workload.layers.base import Buffer, ModelGraph, Parameter
from simdp.workload.models.base import PLAIN, FileNames, Model

SHOWN = 3
"""Maximum number of differences in a message."""

OTHER_RANK = re.compile(r"rank\d+/")
"""Prefix of another rank's tensor that differed from rank 0's in ``--save-weights``."""


def drawn(
    model: Model, graph: ModelGraph, dtype: str, seed: int, rank: int, known: Collection[str] = ()
) -> dict[str, Array]:
    """Draw a rank's parameters except ``known`` ones; buffers start as torch's do.

    They equal those of a torch script that constructs the model after ``torch.manual_seed(seed +
    rank)``. Parameters outside of the model, such as adapters, have separate streams.
    """
    wanted = [parameter for parameter in graph.parameters if parameter.name not in known]
    own = {parameter.name for parameter in model.graph.parameters}
    made = as_torch(model, dtype, seed + rank) if any(p.name in own for p in wanted) else {}
    arrays = dict[str, Array]()
    for p in wanted:
        if p.name in made:
            arrays[p.name] = made[p.name]
        else:
            random = stream(seed, "weights", rank, p.name)
            arrays[p.name] = p.initial.draw(random, p.shape).astype(dtype)
    fresh = [buffer for buffer in graph.buffers if buffer.name not in known]
    return arrays | {buffer.name: _fresh(buffer, dtype) for buffer in fresh}


def as_torch(model: Model, dtype: str, seed: int) -> dict[str, Array]:
    """A model's parameters as torch draws them after ``torch.manual_seed(seed)``.

    In float64 as after ``torch.set_default_dtype(torch.float64)``.
    """
    draws, generator, arrays = model.draws(), TorchGenerator(seed), dict[str, Array]()
    last = {parameter.name: number for number, parameter in enumerate(draws)}
    wanted = {parameter.name for parameter in model.graph.parameters}
    for number, (name, shape, start) in enumerate(draws):
        if last[name] != number or name not in wanted:
            start.skip_as_torch(generator, shape, dtype)
        elif start.kind == "copy":
            arrays[name] = arrays[start.of].copy()
        else:
            arrays[name] = start.draw_as_torch(generator, shape, dtype)
    return arrays


def loaded(
    path: Path,
    graph: ModelGraph,
    dtype: str,
    names: FileNames = PLAIN,
    optional: Collection[str] = (),
) -> dict[str, Array]:
    """Read rank 0's parameters from a checkpoint, and its buffers as far as they are stored.

    ``optional`` parameters may be missing.
    """
    stored = _stored(path)
    wanted = [p.name for p in graph.parameters] + [buffer.name for buffer in graph.buffers]
    called = dict(names.pairs(stored, wanted))
    there = [p.name for p in graph.parameters if p.name in called or p.name not in optional]
    arrays = {name: _array(stored[called[name]], dtype) for name in there}
    for buffer in graph.buffers:
        fresh = _fresh(buffer, dtype)
        place = called.get(buffer.name)
        arrays[buffer.name] = fresh if place is None else _array(stored[place], fresh.dtype.name)
    return arrays


def fitted(model: Model, path: Path) -> Model:
    """Untie a head that differs from the embedding in a file of weights, as transformers does."""
    tied = getattr(model, "tie_word_embeddings", False)
    for name, other in model.file_names.tied if tied else ():
        try:
            stored = _stored(path)
            if {name, other} <= stored.keys() and not np.array_equal(stored[name], stored[other]):
                return model.model_copy(update={"tie_word_embeddings": False})
        except ScenarioError:  # `problem_with` reports it
            return model
    return model


def _stored(path: Path) -> Mapping[str, Array]:
    """Open a checkpoint: safetensors by its name, or the index of several, else npz."""
    if path.name.endswith((".safetensors", ".json")):
        return read_tensors(path)
    return read_npz(path)


def _array(stored: Array, dtype: str) -> Array:
    """A copy in this dtype, not a view of a file."""
    return np.array(stored, dtype=dtype, subok=False)


def _fresh(buffer: Buffer, dtype: str) -> Array:
    return np.full(buffer.shape, buffer.value, dtype="int64" if buffer.integer else dtype)


def problem_with(
    path: Path, graph: ModelGraph, names: FileNames = PLAIN, optional: Collection[str] = ()
) -> str | None:
    """Differences between a checkpoint and the model, the first ones by name; or None.

    The checkpoint is an npz file, a safetensors file, or the index of several of these; buffers and
    ``optional`` parameters may be missing. Raises ScenarioError if it cannot be read.
    """
    stored = _stored(path)
    wanted: dict[str, Parameter | Buffer] = {p.name: p for p in graph.parameters}
    known = wanted | {buffer.name: buffer for buffer in graph.buffers}
    pairs = [pair for pair in names.pairs(stored, known) if not OTHER_RANK.match(pair[1])]
    called = dict(pairs)
    missing = [(n, p) for n, p in wanted.items() if n not in called and n not in optional]
    wrong = [f"has no {n!r} of shape {p.shape}" for n, p in missing]
    wrong += [f"has {there!r}, which the model lacks" for name, there in pairs if name not in known]
    wrong += [
        f"has {there!r} and {called[name]!r}, which are one tensor of the model"
        for name, there in pairs
        if called[name] != there
    ]
    for name in [name for name in known if name in called]:
        wrong += _differences(called[name], stored[called[name]], known[name].shape)
    more = f" (and {len(wrong) - SHOWN} more)" if len(wrong) > SHOWN else ""
    return f"{path}: {'; '.join(sorted(wrong)[:SHOWN])}{more}." if wrong else None


def _differences(name: str, array: Array, shape: tuple[int, ...]) -> list[str]:
    """Differences of a tensor that both have."""
    if array.shape != shape:
        return [f"has {name!r} of shape {array.shape}, the model needs {shape}"]
    if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        return [f"has {name!r} of {array.dtype} that is not all finite numbers"]
    return []
