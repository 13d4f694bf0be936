"""Nodes: which of them a job uses, which stand by, and which are away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf


class Nodes:
    """The nodes of a run.

    Parameters
    ----------
    wanted : int
        As many as the job uses, if they are there.
    spares : int
        Those beside them.

    Attributes
    ----------
    away : dict of int to float
        Nodes that cannot be used, and until when [s].
    idle : list of int
        Nodes that could be, in the order in which they came.
    seconds : float
        Sum of all times that nodes were there [node s].
    """

    def __init__(self, wanted: int, spares: int = 0) -> None:
        self.wanted, self.total = wanted, wanted + spares
        self.away: dict[int, float] = {}
        self.idle = list(range(wanted, self.total))
        self.seconds, self._since = 0.0, 0.0

    @property
    def used(self) -> int:
        """How many the job uses, or would, if it ran."""
        return self.total - len(self.away) - len(self.idle)

    def in_use(self, nodes: Iterable[int]) -> list[int]:
        """Those of some nodes that the job uses."""
        return [n for n in nodes if n not in self.away and n not in self.idle]

    def take(self, now: float, nodes: Sequence[int], until: float = inf) -> None:
        """Take nodes away until an instant."""
        self.count(now)
        for node in nodes:
            self.away[node] = max(until, self.away.get(node, 0.0))
            if node in self.idle:
                self.idle.remove(node)

    def give(self, now: float, nodes: Iterable[int]) -> list[int]:
        """Give nodes back; those that were away stand by."""
        self.count(now)
        back = [node for node in nodes if self.away.pop(node, None) is not None]
        self.idle += back
        return back

    def claim(self) -> int:
        """Use nodes that stand by in place of those that are missing; say how many."""
        count = min(max(self.wanted - self.used, 0), len(self.idle))
        del self.idle[:count]
        return count

    def due(self, node: int, now: float) -> bool:
        """Whether a node that is away can be used now."""
        return self.away.get(node, inf) <= now

    def count(self, now: float) -> None:
        """Add up the time of those that are there."""
        self.seconds += (self.total - len(self.away)) * (now - self._since)
        self._since = now
