"""Stretching: work takes longer while a collective of the same rank is under way."""

from __future__ import annotations

from simdp.engine.programs.calls import Handle

SHORT = 1e-7
"""What is lacking below this is made up for without another look [s]."""


class Stretching:
    """What ranks have worked since they last looked, and what was under way meanwhile.

    While a collective is under way on a rank, from when it enters to when it is through, work takes
    ``1 + slowdown`` times as long, as in scenarios. What was under way is known up to an instant
    that has come; so a rank works as if it were alone, looks back, and makes up for what is
    lacking, in ever smaller pieces.

    Parameters
    ----------
    slowdown : float
        The cluster's ``overheads.compute_slowdown``.
    world_size : int
        Number of ranks.
    """

    def __init__(self, slowdown: float, world_size: int) -> None:
        self._share = slowdown / (1 + slowdown)
        self._calls: list[list[Handle]] = [[] for _ in range(world_size)]
        self._worked: list[list[tuple[float, float]]] = [[] for _ in range(world_size)]

    def issued(self, handle: Handle) -> None:
        """A rank takes part in a collective, now or when its turn comes."""
        self._calls[handle.rank].append(handle)

    def worked(self, rank: int, start: float, end: float) -> None:
        """A rank has work from an instant to another [s]."""
        if self._calls[rank]:
            self._worked[rank].append((start, end))

    def lacking(self, rank: int) -> float:
        """Work that was not done in the time that has passed, if that had been undisturbed [s]."""
        worked, self._worked[rank] = self._worked[rank], []
        if not worked:
            return 0.0
        beside, last = 0.0, worked[-1][1]
        calls = sorted(self._calls[rank], key=lambda call: call.enter)
        for start, end in worked:
            now = start
            for call in calls:
                begin, until = max(call.enter, now), min(call.end, end) if call.done else end
                if until > begin:
                    beside, now = beside + until - begin, until
        self._calls[rank] = [call for call in calls if not call.done or call.end > last]
        return beside * self._share

    def is_beside(self, rank: int) -> bool:
        """Whether collectives of a rank are under way, or were when it last looked."""
        return bool(self._calls[rank])
