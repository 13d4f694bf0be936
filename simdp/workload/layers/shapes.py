"""Checks of what a layer is given: the shape of one sample."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simdp.spec import Int
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


Rows = Annotated[
    Annotated[Int, Field(ge=1, le=10**8)]
    | Annotated[tuple[Annotated[Int, Field(ge=1, le=10**8)], ...], Field(min_length=1)],
    Field(union_mode="left_to_right"),
]
"""Length of the last axis, or lengths of the last axes, as torch's ``normalized_shape``."""


def row_shape(rows: int | Shape) -> Shape:
    """The lengths of the last axes."""
    return (rows,) if isinstance(rows, int) else rows


def check_rows(shape: Shape, rows: int | Shape) -> None:
    """Check that the last axes of a sample have these lengths.

    Raises
    ------
    ShapeError
        If they have not.
    """
    wanted = row_shape(rows)
    if shape[-len(wanted) :] != wanted:
        what = f"{rows} features" if len(wanted) == 1 else f"rows of shape {wanted}"
        raise ShapeError(f"takes {what}, but gets samples of shape {shape}")


IMAGES = {
    1: ("series", "(channels, length)"),
    2: ("images", "(channels, height, width)"),
    3: ("volumes", "(channels, depth, height, width)"),
}
"""What has so many axes beside the channels, and its shape in words."""


def image_shape(shape: Shape, axes: int = 2) -> Shape:
    """Check that samples are channels of images, or of what has one axis or three.

    Raises
    ------
    ShapeError
        If they have another number of axes.
    """
    if len(shape) != axes + 1:
        what, form = IMAGES[axes]
        raise ShapeError(f"takes {what}, shape {form}, but gets samples of shape {shape}")
    return shape


def check_channels(shape: Shape, channels: int, axes: int) -> None:
    """Check that samples are images, or alike, of so many channels.

    Raises
    ------
    ShapeError
        If they are not.
    """
    if image_shape(shape, axes)[0] != channels:
        what = IMAGES[axes][0]
        raise ShapeError(f"takes {what} of {channels} channels, but gets samples of shape {shape}")


def axis_of(dim: int, shape: Shape) -> int:
    """Number of an axis among those of a batch, whose samples are axis 0; -1 is the last.

    Raises
    ------
    ShapeError
        If samples have no such axis.
    """
    axis = dim if dim >= 0 else dim + 1 + len(shape)
    if not 1 <= axis <= len(shape):
        raise ShapeError(
            f"works along axis {dim}, but gets samples of shape {shape}, "
            f"whose axes are 1 to {len(shape)}"
        )
    return axis


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
