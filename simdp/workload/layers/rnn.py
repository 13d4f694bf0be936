"""RNN: a plain recurrent network along a sequence, as torch.nn.RNN with the samples first."""

from __future__ import annotations

from typing import Literal

from simdp.workload.layers.arrays.recurrence import Cell, ReLUCell, TanhCell
from simdp.workload.layers.recurrent import Recurrent


class RNN(Recurrent):
    """A stack of plain recurrent layers; what comes out are the last layer's states.

    Attributes
    ----------
    nonlinearity : {"tanh", "relu"}
        What bends the sum of input and state.
    """

    kind: Literal["rnn"] = "rnn"
    nonlinearity: Literal["tanh", "relu"] = "tanh"

    @property
    def cell(self) -> Cell:
        return TanhCell() if self.nonlinearity == "tanh" else ReLUCell()
