"""Calls: what a rank asks for, what it gets back to wait for, and how ranks are told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Array


class Asked(NamedTuple):
    """A call as a rank writes it; all ranks of a group must write the same one.

    Attributes
    ----------
    name : str
        As in torch.distributed.
    dtype : str
        Of the tensors; empty where there are none.
    shape : tuple of int
        Of the tensor that every rank names.
    more : str
        Operation, root, and what else must be the same: ``"op=SUM"``.
    """

    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    more: str = ""

    def __str__(self) -> str:
        tensor = f"{self.dtype}[{', '.join(map(str, self.shape))}]" if self.dtype else ""
        return f"{self.name}({', '.join(part for part in (tensor, self.more) if part)})"


class Given(NamedTuple):
    """What a rank brings to a call.

    Attributes
    ----------
    inputs, outputs : sequence of ndarray
        Read when the call begins; written when it is done on this rank.
    """

    inputs: Sequence[Array] = ()
    outputs: Sequence[Array] = ()


NOTHING = Given()


class Handle:
    """What a rank waits for.

    Parameters
    ----------
    rank : int
        Whose.
    asked : Asked
        The call.
    blockers : callable
        Says for what a rank would wait now, for reports of deadlocks.

    Attributes
    ----------
    done : bool
        Whether it is over on this rank.
    end : float
        Since when [s].
    enter : float
        When the rank began to take part in it [s].
    source : int
        The rank that a message came from; -1 for all other calls.
    """

    __slots__ = ("asked", "blockers", "done", "end", "enter", "rank", "source", "waiting")

    def __init__(self, rank: int, asked: Asked, blockers: Callable[[], str]) -> None:
        self.rank, self.asked, self.blockers = rank, asked, blockers
        self.done = self.waiting = False
        self.end, self.enter = 0.0, inf
        self.source = -1


@lru_cache(maxsize=64)
def named(dtype: np.dtype[Any]) -> str:
    """Name a dtype; NumPy takes longer for it than a rank for the rest of a call."""
    return str(dtype)


def listed(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 0, 2``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def deliver(values: Sequence[Array], given: Given) -> None:
    """Write results into the tensors of a rank."""
    for target, value in zip(given.outputs, values, strict=True):
        target[...] = value if value.shape == target.shape else value.reshape(target.shape)
