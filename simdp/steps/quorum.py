"""Quorum: the ranks that take part in all steps of a run, or of a part of it."""

from __future__ import annotations

from typing import NamedTuple

from simdp.arrays import Ints
from simdp.steps.bucket import Group
from simdp.workload.participants import Participants

QUORUM = "quorum"
"""Name of the process group of all ranks that take part."""


class Quorum(NamedTuple):
    """Who takes part.

    Attributes
    ----------
    num_counted : int
        Ranks whose gradients are averaged.
    participants : Participants or None
        Who takes part in every step; None where nobody can drop out.
    """

    num_counted: int
    participants: Participants | None = None

    @property
    def group(self) -> Group:
        """All that take part, as collectives call them; None where these are all ranks."""
        return None if self.participants is None or self.participants.there.all() else QUORUM

    @property
    def there(self) -> tuple[bool, ...] | None:
        """Of each rank whether it takes part; None: all do."""
        return None if self.participants is None else tuple(self.participants.there.tolist())

    def among(self, groups: Ints) -> Ints:
        """Those of some groups of ranks, a row each, that take part as a whole."""
        if self.participants is None:
            return groups
        found: Ints = groups[self.participants.there[groups].all(axis=1)]
        return found
