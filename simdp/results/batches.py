"""Piece: which shapes of a batch a device computes on."""

from __future__ import annotations

from typing import NamedTuple


class Piece(NamedTuple):
    """What a device gets of a micro-step, and what it makes of it.

    Attributes
    ----------
    step, micro_step : int
        From 1 and from 0.
    rank : int
        Whose device.
    inputs : tuple of tuple of int
        Shapes of the model's inputs, samples first; empty where the device gets nothing.
    output : tuple of int
        Shape of the output, samples first.
    """

    step: int
    micro_step: int
    rank: int
    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
