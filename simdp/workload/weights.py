"""A replica's first weights and buffers: from a checkpoint, or drawn."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from simdp.arrays import Array
from simdp.files import read_npz
from simdp.rng import stream
from simdp.workload.graph import Graph
from simdp.workload.layers import Buffer, Parameter
from simdp.workload.models import Model

SHOWN = 3
"""Differences between a checkpoint and the model that a message lists."""

OTHER_RANK = re.compile(r"rank\d+/")
"""Leads a tensor of another rank where ``--save-weights`` found it to differ from rank 0's."""


def drawn(model: Model, graph: Graph, dtype: str, seed: int, rank: int) -> dict[str, Array]:
    """Draw a rank's parameters, each from a stream of its own; buffers start as torch's do."""
    found = {
        p.name: model.initial(p).draw(stream(seed, "weights", rank, p.name), p.shape).astype(dtype)
        for p in graph.parameters
    }
    return found | {buffer.name: _fresh(buffer, dtype) for buffer in graph.buffers}


def loaded(path: Path, graph: Graph, dtype: str) -> dict[str, Array]:
    """Read rank 0's parameters from a checkpoint, and those buffers that it has."""
    stored = read_npz(path)
    found = {p.name: stored[p.name].astype(dtype) for p in graph.parameters}
    for buffer in graph.buffers:
        fresh = _fresh(buffer, dtype)
        found[buffer.name] = (
            stored[buffer.name].astype(fresh.dtype) if buffer.name in stored else fresh
        )
    return found


def _fresh(buffer: Buffer, dtype: str) -> Array:
    return np.full(buffer.shape, buffer.value, dtype="int64" if buffer.integer else dtype)


def problem_with(path: Path, graph: Graph) -> str | None:
    """Say how a checkpoint differs from the model, the first differences by name; or None.

    Parameters
    ----------
    path : Path
        An npz file of arrays by torch name.
    graph : Graph
        The model's; its buffers may be missing from the file.

    Raises
    ------
    ScenarioError
        If the file cannot be read.
    """
    stored = {n: array for n, array in read_npz(path).items() if not OTHER_RANK.match(n)}
    wanted: dict[str, Parameter | Buffer] = {p.name: p for p in graph.parameters}
    known = wanted | {buffer.name: buffer for buffer in graph.buffers}
    wrong = [f"has no {n!r} of shape {p.shape}" for n, p in wanted.items() if n not in stored]
    wrong += [f"has {name!r}, which the model lacks" for name in stored if name not in known]
    for name in [name for name in known if name in stored]:
        array, shape = stored[name], known[name].shape
        if array.shape != shape:
            wrong.append(f"has {name!r} of shape {array.shape}, the model needs {shape}")
        elif array.dtype.kind not in "fiu" or not np.isfinite(array).all():
            wrong.append(f"has {name!r} of {array.dtype} that is not all finite numbers")
    more = f" (and {len(wrong) - SHOWN} more)" if len(wrong) > SHOWN else ""
    return f"{path}: {'; '.join(sorted(wrong)[:SHOWN])}{more}." if wrong else None
