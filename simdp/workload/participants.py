"""Participants: who takes part in a step, and whose gradients count in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from simdp.arrays import Bools, Floats

Role = Literal["counted", "silent", "late", "absent"]
"""What a rank is in a step: its gradient counts; it adds zeros, and does all else; it adds zeros,
and leaves its work as soon as the slowest that counts has done it; it is not there."""


@dataclass(frozen=True)
class Participants:
    """What every rank is in a step.

    Attributes
    ----------
    roles : tuple of Role
        Of each rank; of one at least the gradient counts.
    """

    roles: tuple[Role, ...]

    @classmethod
    def without(cls, world_size: int, role: Role, ranks: Sequence[int]) -> Participants:
        """All ranks count but some, which have another role."""
        there = set(ranks)
        return cls(tuple(role if r in there else "counted" for r in range(world_size)))

    @cached_property
    def counted(self) -> Bools:
        """Whose gradients count, shape `(world_size,)`."""
        return np.array([role == "counted" for role in self.roles])

    @cached_property
    def late(self) -> Bools:
        """Who leaves work, shape `(world_size,)`."""
        return np.array([role == "late" for role in self.roles])

    @cached_property
    def there(self) -> Bools:
        """Who computes and communicates, shape `(world_size,)`."""
        return np.array([role != "absent" for role in self.roles])

    @property
    def num_counted(self) -> int:
        """Ranks whose gradients count."""
        return int(self.counted.sum())

    @property
    def ranks(self) -> tuple[int, ...]:
        """Who is there."""
        return tuple(np.flatnonzero(self.there).tolist())

    def seconds(self, whole: Floats) -> Floats:
        """What is left of work on each rank.

        Parameters
        ----------
        whole : ndarray, shape `(..., world_size)`
            How long it would take every rank [s].
        """
        if self.late.any():
            slowest = whole[..., self.counted].max(axis=-1, keepdims=True)
            whole = np.where(self.late, np.minimum(whole, slowest), whole)
        return whole * self.there
