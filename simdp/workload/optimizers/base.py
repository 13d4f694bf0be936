"""Optimizer: the update of one tensor, in place, with torch's arithmetic."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simdp.spec import Spec

Array = NDArray[Any]
State = dict[str, Array]

BLOCK = 16384
"""Elements updated at a time, so that temporaries stay in the processor's cache."""


class Optimizer(Spec):
    """How a gradient changes a parameter.

    Attributes
    ----------
    lr : float
        Learning rate.
    """

    kind: str
    lr: float = Field(1e-3, ge=0)

    @abstractmethod
    def state_names(self) -> list[str]:
        """Names of the tensors kept per parameter, each shaped like it."""

    @abstractmethod
    def update(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        """Change a block of a parameter and of its state in place.

        Parameters
        ----------
        parameter, gradient : ndarray
            One-dimensional, of equal length; the gradient is left as it is.
        state : dict of str to ndarray
            The tensors of `state_names`, zero before the first step.
        lr : float
            Learning rate of this step.
        t : int
            Number of this step, from 1.
        """

    def step(self, parameter: Array, gradient: Array, state: State, lr: float, t: int) -> None:
        """Update one tensor of any shape, block by block; arguments as in `update`."""
        flat, grad = parameter.reshape(-1), gradient.reshape(-1)
        kept = {name: tensor.reshape(-1) for name, tensor in state.items()}
        for begin in range(0, flat.size, BLOCK):
            part = slice(begin, begin + BLOCK)
            block = {name: tensor[part] for name, tensor in kept.items()}
            self.update(flat[part], grad[part], block, lr, t)

    def new_state(self, parameter: Array) -> State:
        """State before the first step."""
        return {name: np.zeros_like(parameter) for name in self.state_names()}

    def nbytes_moved(self, num_elements: int, itemsize: int) -> float:
        """Bytes that one step reads and writes: gradient in; parameter and state in and out."""
        return (3 + 2 * len(self.state_names())) * num_elements * itemsize
