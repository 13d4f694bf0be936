"""Checks of what a layer is given: the shape of one sample."""

from __future__ import annotations

from simdp.workload.layers.base import Shape, ShapeError


def last_axis(shape: Shape, features: int) -> Shape:
    """Check that the last axis of a sample has so many features; return the axes before it.

    Raises
    ------
    ShapeError
        If it has not.
    """
    if not shape or shape[-1] != features:
        raise ShapeError(f"takes {features} features, but gets samples of shape {shape}")
    return shape[:-1]


def image_shape(shape: Shape) -> tuple[int, int, int]:
    """Take an image's shape apart into channels, height and width.

    Raises
    ------
    ShapeError
        If it has not these three axes.
    """
    if len(shape) != 3:
        raise ShapeError(
            f"takes images, shape (channels, height, width), but gets samples of shape {shape}"
        )
    return shape[0], shape[1], shape[2]


def sequence_shape(shape: Shape) -> tuple[int, int]:
    """Take a sequence's shape apart into length and features.

    Raises
    ------
    ShapeError
        If it has not these two axes.
    """
    if len(shape) != 2:
        raise ShapeError(f"takes sequences (length, features), but gets samples of shape {shape}")
    return shape[0], shape[1]
