"""Generators: the random numbers of each rank, and what else torch sets for a whole process.

The generators of torch, NumPy and Python belong to the process; each rank has states of its own,
which are put in their place whenever the rank goes on. Torch's begins as in any fresh process. The
others begin with seeds of the program and the rank; a real process takes what the system draws.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from simdp.rng import stream
from simdp.torch.parts import Part
from simdp.torch.ranks import Rank

FRESH = 67280421310721
"""What torch's generator is seeded with in a fresh process, in every one."""


class Generators(Part):
    """Each rank's generators, default dtype and flags of determinism."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        before = _state()
        try:
            yield
        finally:
            _put(before)

    def begin(self, rank: Rank) -> None:
        drawn = stream(rank.seed, "generators", rank.rank)
        torch.default_generator.manual_seed(FRESH)
        random.seed(int(drawn.integers(2**63)))
        np.random.seed(int(drawn.integers(2**32)))  # noqa: NPY002
        rank.state["generators"] = _state()

    def enter(self, rank: Rank) -> None:
        if "generators" in rank.state:
            _put(rank.state["generators"])

    def leave(self, rank: Rank) -> None:
        rank.state["generators"] = _state()

    def end(self, rank: Rank) -> None:
        rank.state.pop("generators", None)


def _state() -> tuple[Any, ...]:
    return (
        torch.default_generator.get_state(),
        random.getstate(),
        np.random.get_state(),  # noqa: NPY002
        torch.get_default_dtype(),
        torch.get_deterministic_debug_mode(),
    )


def _put(state: tuple[Any, ...]) -> None:
    torch.default_generator.set_state(state[0])
    random.setstate(state[1])
    np.random.set_state(state[2])  # noqa: NPY002
    if torch.get_default_dtype() != state[3]:
        torch.set_default_dtype(state[3])
    if torch.get_deterministic_debug_mode() != state[4]:
        torch.set_deterministic_debug_mode(state[4])
