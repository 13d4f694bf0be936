"""A node that computes slower by a constant factor, as one with poor cooling does."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from simdp.arrays import Floats, Ints
from simdp.cluster.stragglers.base import Straggler
from simdp.spec import Float, Int


class SlowNode(Straggler):
    """All ranks of node ``node`` take ``factor`` times as long for forward and backward.

    Attributes
    ----------
    node : int
        Which, from 0.
    factor : float
        Above 1 it is slower than the others, below 1 faster.
    """

    kind: Literal["slow_node"] = "slow_node"
    node: Int = Field(ge=0)
    factor: Float = Field(gt=0, le=1e6)

    def on_node(self) -> int | None:
        return self.node

    def lasting(self, nodes: Ints, random: np.random.Generator) -> Floats:
        return np.where(nodes == self.node, self.factor, 1.0)  # idle where there is no such node
