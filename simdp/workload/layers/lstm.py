"""LSTM: long short-term memory along a sequence, as torch.nn.LSTM with the samples first."""

from __future__ import annotations

from typing import Literal

from simdp.workload.layers.arrays.recurrence import Cell, LSTMCell
from simdp.workload.layers.recurrent import Recurrent


class LSTM(Recurrent):
    """A stack of layers of long short-term memory; what comes out are the last layer's states."""

    kind: Literal["lstm"] = "lstm"

    @property
    def cell(self) -> Cell:
        return LSTMCell()
