"""GRU: gated recurrent units along a sequence, as torch.nn.GRU with the samples first."""

from __future__ import annotations

from typing import Literal

from simdp.workload.layers.arrays.recurrence import Cell, GRUCell
from simdp.workload.layers.recurrent import Recurrent


class GRU(Recurrent):
    """A stack of layers of gated recurrent units; what comes out are the last layer's states."""

    kind: Literal["gru"] = "gru"

    @property
    def cell(self) -> Cell:
        return GRUCell()
