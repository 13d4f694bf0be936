"""LSTM: long short-term memory along a sequence, as torch.nn.LSTM with the samples first."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from simdp.spec import Int, problem
from simdp.workload.layers.arrays.recurrence import Cell, LSTMCell
from simdp.workload.layers.recurrent import Recurrent


class LSTM(Recurrent):
    """A stack of layers of long short-term memory; what comes out are the last layer's states.

    Attributes
    ----------
    proj_size : int
        Features to which each step's state is mapped before it goes on (Sak, Senior and Beaufays,
        arXiv 1402.1128); 0 for no such map.
    """

    kind: Literal["lstm"] = "lstm"
    proj_size: Int = Field(0, ge=0, le=10**8)

    @model_validator(mode="after")
    def _projection_is_smaller(self) -> Self:
        if self.proj_size >= self.hidden_size:
            raise problem(
                f"proj_size: {self.proj_size} is not less than hidden_size, {self.hidden_size}; "
                "write less, or 0 for no projection."
            )
        return self

    @property
    def state_size(self) -> int:
        return self.proj_size or self.hidden_size

    @property
    def cell(self) -> Cell:
        return LSTMCell()
