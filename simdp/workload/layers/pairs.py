"""Pairs: fields for height and width, which take one number for both."""

from __future__ import annotations

from typing import Annotated

from simdp.workload.layers.extents import ExtentsOf

Pair = tuple[int, int]
"""In the order height, width."""

Size = Annotated[Pair, ExtentsOf(2, 1)]
Margin = Annotated[Pair, ExtentsOf(2, 0)]
Padding = Annotated[Pair | str, ExtentsOf(2, 0, "same", "valid")]
