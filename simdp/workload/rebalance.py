"""Rebalancing: a global batch cut by how fast the ranks are, in place of equal pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

import numpy as np
from pydantic import Field, PrivateAttr, model_validator

from simdp.arrays import Ints
from simdp.spec import Float, Int, Spec, problem
from simdp.workload.sampling import chunk_sizes

Share = Annotated[Float, Field(gt=0, le=1e9)]


class Rebalance(Spec):
    """How a global batch is cut over ranks that are not equally fast.

    Each rank gets whole samples by its share: rounded down, and what is left goes to those that
    lost most of one. Losses must then count by samples (``weight_by_shard``), so that the gradient
    is that of the whole batch, however it is cut.

    Attributes
    ----------
    every : int or None
        Measure: after so many steps, the next ones are cut by each rank's samples per second of
        compute in them. The first steps are cut as torch.chunk does.
    shares : list of float or None
        In place of that, what each rank gets in proportion.
    """

    every: Int | None = Field(None, ge=1, le=10**9)
    shares: Annotated[list[Share], Field(min_length=1)] | None = None

    _measured: tuple[tuple[float, ...], ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _says_how(self) -> Rebalance:
        if (self.every is None) == (self.shares is None):
            raise problem(
                "give either every, a number of steps, to go by measured speeds, or shares, one "
                "number per rank."
            )
        return self

    @property
    def is_open(self) -> bool:
        """Whether speeds are still to be measured."""
        return self.every is not None and not self._measured

    def measured(self, shares: Sequence[Sequence[float]]) -> Self:
        """The same with what was measured in the first ``every`` steps, in the second, ..."""
        found = self.model_copy()
        found._measured = tuple(tuple(each) for each in shares)
        return found

    def each(self) -> list[Rebalance | None]:
        """What comes one after the other, each for good; None where pieces are equal."""
        known = dict.fromkeys(self._measured if self.shares is None else [tuple(self.shares)])
        even: list[Rebalance | None] = [None] if self.shares is None else []
        return even + [Rebalance(shares=list(shares)) for shares in known]

    def sizes(self, step: int, num_samples: int, world_size: int) -> Ints:
        """Samples of each rank in a step, shape `(world_size,)`.

        Parameters
        ----------
        step : int
            Counted from 0.
        num_samples, world_size : int
            Of the batch that is cut, and into how many pieces.
        """
        shares = self._at(step)
        if shares is None:
            pieces = chunk_sizes(num_samples, world_size)
            return np.array(pieces + [0] * (world_size - len(pieces)))
        return by_shares(num_samples, shares)

    def _at(self, step: int) -> Sequence[float] | None:
        if self.every is None:
            return self.shares
        period = min(step // self.every, len(self._measured))
        return self._measured[period - 1] if period else None


def by_shares(num_samples: int, shares: Sequence[float]) -> Ints:
    """Deal whole samples by shares: the largest remainders get what rounding down leaves."""
    exact = np.array(shares) / np.sum(shares) * num_samples
    sizes: Ints = np.floor(exact * (1 + 1e-12)).astype(np.int64)
    most = np.argsort(sizes - exact, kind="stable")[: num_samples - int(sizes.sum())]
    sizes[most] += 1
    return sizes
