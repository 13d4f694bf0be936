"""Sketches of tensors: small arrays whose distances are those of the tensors.

A tensor of at most `EXACT` elements is its own sketch. A larger one is a count sketch (Charikar,
Chen and Farach-Colton, 2002): its elements with random signs, added in `EXACT` places. Sketches
are linear, so that those of shards add up to that of the whole tensor, and those of local gradients
to that of their mean; the 2-norm of a difference is right within a few percent.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from simdp.arrays import Array, Floats
from simdp.rng import stream

EXACT = 4096
"""Elements of a sketch."""

PROBED = 64
"""Elements of a probe."""

_TO, _NUMPY = torch._C.TensorBase.to, torch._C.TensorBase.numpy
"""torch's methods, even if replaced while a script runs.

`to` always copies, since memory of a virtual GPU is no array of NumPy.
"""


def values(tensor: Any) -> Floats:
    """Return the elements of a tensor in float64, shape `(num_elements,)`, unseen by modes."""
    return _evenly(tensor, None)


def _evenly(tensor: Any, most: int | None) -> Floats:
    """Return the elements of a tensor, or at most some of them, evenly spaced."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        memory = tensor.detach()
        if memory.layout is not torch.strided:
            memory = memory.to_dense()
        if memory.is_complex():
            memory = torch.view_as_real(memory)
        flat = memory.reshape(-1)
        if most is not None:
            flat = flat[:: -(-max(flat.numel(), 1) // most)]
        return _NUMPY(_TO(flat, torch.float64, False, True))


def sketch(tensor: Any, offset: int = 0, total: int | None = None) -> Floats | None:
    """Return the sketch of a tensor, or of this rank's shard of it; None for a replica of a shard.

    ``tensor`` may be a DTensor; `EXACT` elements or less are returned as they are, zero outside of
    the shard. Other tensors may begin at ``offset`` of one with ``total`` elements.
    """
    if hasattr(tensor, "_local_tensor"):
        return _of_shard(tensor)
    return _sketched(values(tensor), offset, total or tensor.numel())


def is_shard(tensor: Any) -> bool:
    """Return whether a tensor is a rank's part of a larger one."""
    placements = getattr(tensor, "placements", ())
    return any(place.is_shard() for place in placements)


def _of_shard(tensor: Any) -> Floats | None:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements, total = tensor.device_mesh, tensor.placements, tensor.numel()
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None
    replicas = [
        at for at, place in zip(coordinate, placements, strict=True) if not place.is_shard()
    ]
    if is_shard(tensor) and any(replicas):
        return None
    local = values(tensor._local_tensor)
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    if local.size != int(np.prod(shape)):
        return None
    whole = tuple(tensor.shape)
    if len(shape) == 0 or tuple(shape[1:]) == whole[1:]:
        row = int(np.prod(whole[1:])) if whole else 1
        return _sketched(local, int(offset[0]) * row if whole else 0, total)
    grid = np.ix_(
        *(np.arange(first, first + size) for first, size in zip(offset, shape, strict=True))
    )
    positions = np.ravel_multi_index(np.broadcast_arrays(*grid), whole).reshape(-1)
    full = np.zeros(total)
    full[positions] = local
    return _sketched(full, 0, total)


def _sketched(flat: Floats, offset: int, total: int) -> Floats:
    if total <= EXACT:
        if flat.size == total:
            return flat.copy()
        small = np.zeros(total)
        small[offset : offset + flat.size] = flat
        return small
    begin = offset // EXACT * EXACT
    end = -(-(offset + flat.size) // EXACT) * EXACT
    rows = np.zeros(end - begin)
    rows[offset - begin : offset - begin + flat.size] = flat
    rows *= _signs(-(-total // EXACT) * EXACT)[begin:end]
    return rows.reshape(-1, EXACT).sum(axis=0)


@lru_cache(maxsize=64)
def _signs(count: int) -> Array:
    drawn = stream(0, "signs of a sketch", count).integers(0, 2, count, dtype=np.int8)
    return 2 * drawn - 1


def probe(tensor: Any) -> Floats | None:
    """Return at most `PROBED` evenly spaced elements of a tensor; None for a shard."""
    return None if hasattr(tensor, "_local_tensor") else _evenly(tensor, PROBED)


def norm(vector: Floats) -> float:
    """Return the 2-norm."""
    return float(np.sqrt(np.dot(vector, vector)))
