"""What layers over sequences share: the check of a sample's shape."""

from __future__ import annotations

from simdp.workload.layers.base import Shape, ShapeError


def sequence(shape: Shape) -> tuple[int, int]:
    """Take a sample's shape apart into length and features.

    Raises
    ------
    ShapeError
        If it has not these two axes.
    """
    if len(shape) != 2:
        raise ShapeError(f"takes sequences (length, features), but gets samples of shape {shape}")
    return shape[0], shape[1]
