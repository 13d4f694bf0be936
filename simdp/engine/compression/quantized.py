"""Quantized: the numbers of gradients that travel as bytes, on all ranks."""

from __future__ import annotations

import numpy as np

from simdp.arrays import Array, Floats
from simdp.engine.buffers import FlatBuffers
from simdp.engine.threads import each_rank
from simdp.steps.coded import Code

LEVELS = 255
"""Steps between the least and the greatest number (torch: quint8)."""

EPS = float(np.finfo(np.float32).eps)
"""Scales are no smaller (torch: MinMaxObserver)."""


def quantized(flat: Array, code: Code) -> Floats:
    """What other ranks make of one rank's bucket, shape `(num_elements,)`, float32.

    References
    ----------
    torch, ddp_comm_hooks/quantization_hooks.py; ao/quantization/observer.py.
    """
    filled = np.zeros(code.num_bytes, np.float32)
    filled[: flat.size] = flat
    rows = filled.reshape(code.num_rows, -1)
    least = np.minimum(rows.min(axis=1, keepdims=True), np.float32(0))
    most = np.maximum(rows.max(axis=1, keepdims=True), np.float32(0))
    scale = np.maximum((most - least) / np.float32(LEVELS), np.float32(EPS))
    zero = np.clip(-np.rint(least / scale), 0, LEVELS)
    sent = np.clip(np.rint(rows / scale) + zero, 0, LEVELS)
    found: Floats = (scale * (sent - zero)).reshape(-1)[: flat.size]
    return found


def average(bucket: FlatBuffers, code: Code, divisor: float) -> None:
    """Make every rank's bucket the mean of what all have sent, added in the order of the ranks."""
    sent = each_rank(
        lambda rank: quantized(bucket.flat[rank], code), len(bucket.flat), bucket.flat[0].size
    )
    total = np.zeros_like(sent[0])
    for one in sent:
        total += one
    for flat in bucket.flat:
        flat[...] = total / np.float32(divisor)
