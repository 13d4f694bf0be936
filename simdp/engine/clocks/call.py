"""Call, Groups and Leg: one collective under way in the loop, who does it together, its parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import simpy

from simdp.engine.clocks.dependencies import Dependencies
from simdp.engine.clocks.pace import Pace
from simdp.engine.clocks.wires import Figures
from simdp.engine.ops import Launch


class Leg:
    """What each transfer of a part still waits for.

    Parameters
    ----------
    number : int
        Of the part.
    needs : Dependencies
        Of the part; counted down here in copies.
    chunk_nbytes : float
        Of one chunk of the part [bytes].
    record : bool
        Whether to remember when transfers start and end.
    """

    def __init__(self, number: int, needs: Dependencies, chunk_nbytes: float, record: bool) -> None:
        self.number, self.needs, self.chunk_nbytes = number, needs, chunk_nbytes
        self.pending = needs.pending.copy()
        self.gate_pending = needs.gate_pending.copy()
        self.touching = needs.touching.copy()
        self.start_of = [0.0] * len(needs.src) if record else []
        self.end_of = [0.0] * len(needs.src) if record else []


class Groups:
    """The ranks that do a collective together, where somebody must know when all have come.

    Parameters
    ----------
    op : Launch
        The collective.
    ranks : sequence of int
        Who takes part; all together, unless the collective tells groups.
    slow : float
        The part by which a group that is complete takes longer, until all run free.
    pace : callable
        Makes a pace.
    """

    def __init__(
        self, op: Launch, ranks: Sequence[int], slow: float, pace: Callable[[], Pace]
    ) -> None:
        self._members = [list(ranks)] if op.groups is None else op.groups.tolist()
        self._of = {rank: group for group, several in enumerate(self._members) for rank in several}
        self._missing = [len(several) for several in self._members]
        self._slow, self._runs_free = 1.0 + slow, False
        self._paces = [pace() for _ in self._members] if slow else []
        self.num_waiting = 0

    def come(self, rank: int) -> tuple[Sequence[int], Pace | None]:
        """Let a rank come; return the ranks of its group, if that is complete, and their pace."""
        group = self._of.get(rank)
        if group is None:
            return [rank], None
        pace = self._paces[group] if self._paces else None
        self._missing[group] -= 1
        if self._missing[group]:
            return (), pace
        if pace is not None and not self._runs_free:
            pace.change(self._slow)
        return self._members[group], pace

    def pace_of(self, vertex: int) -> Pace:
        """The pace of what a rank, or a switch, sends; switches serve no groups but all ranks."""
        return self._paces[self._of.get(vertex, 0)]

    def run_free(self) -> None:
        """Compute stands still from now on: nothing slows the collective down any more."""
        self._runs_free = True
        for pace in self._paces:
            pace.change(1.0)


class Call:
    """When each rank came and went.

    Parameters
    ----------
    op : Launch
        The collective.
    ranks : sequence of int
        Who takes part.
    needs : sequence of Dependencies
        Of the parts of its plan.
    groups : Groups or None
        Who does it together, if that matters.
    left : callable, optional
        Told of the call, of each rank that leaves it, and when [s].

    Attributes
    ----------
    ready, enter, end : dict of int to float
        When each rank asked for it, took part and was done [s].
    figures : Figures or None
        What its connections cost; None where its time is told.
    """

    def __init__(
        self,
        op: Launch,
        ranks: Sequence[int],
        needs: Sequence[Dependencies],
        groups: Groups | None = None,
        left: Callable[[Call, int, float], None] | None = None,
    ) -> None:
        self.op, self.ranks, self.groups, self._left_by = op, ranks, groups, left
        chunk = op.nbytes / op.plan.num_chunks
        parts = op.plan.everything if needs else ()
        self.legs = [
            Leg(number, of_part, chunk * len(part.spread), op.record)
            for number, (part, of_part) in enumerate(zip(parts, needs, strict=True))
        ]
        self._after = [len(part.after) for part in parts]
        self.followers = [
            [later for later, part in enumerate(parts) if number in part.after]
            for number in range(len(parts))
        ]
        self.ready = dict[int, float]()
        self.enter = dict[int, float]()
        self.end = dict[int, float]()
        self.figures: Figures | None = None
        self._waiting = dict[int, simpy.Event]()
        self._unmet = dict[int, list[int]]()
        self._left = dict[int, int]()

    @property
    def is_done(self) -> bool:
        """Whether every rank has left."""
        return len(self.end) == len(self.ranks)

    def come(self, rank: int, now: float) -> list[Leg]:
        """Let a rank enter; return the legs that it enters at once."""
        self.enter[rank] = now
        self._unmet[rank] = self._after.copy()
        self._left[rank] = len(self.legs)
        return [leg for leg, unmet in zip(self.legs, self._unmet[rank], strict=True) if not unmet]

    def leave(self, rank: int, leg: Leg) -> list[Leg] | None:
        """Let a rank leave a leg; return the legs that it enters now, or None if it is done."""
        self._left[rank] -= 1
        if not self._left[rank]:
            return None
        unmet, entered = self._unmet[rank], []
        for later in self.followers[leg.number]:
            unmet[later] -= 1
            if not unmet[later]:
                entered.append(self.legs[later])
        return entered

    def finish(self, rank: int, now: float) -> None:
        """Let a rank leave the whole."""
        self.end[rank] = now
        waiting = self._waiting.pop(rank, None)
        if waiting is not None:
            waiting.succeed(now)
        if self._left_by is not None:
            self._left_by(self, rank, now)

    def done(self, env: simpy.Environment, rank: int) -> simpy.Event:
        """Make the event that a rank, which has not left, is done; its value is when [s]."""
        event = self._waiting[rank] = env.event()
        return event

    def forget(self) -> None:
        """Drop what was needed while under way; the ends are still to be waited for."""
        self.legs, self.groups, self._unmet, self._left = [], None, {}, {}

    def reason(self, rank: int, ahead: Call) -> str:
        """Say what a rank waits for that cannot go on.

        Parameters
        ----------
        rank : int
            Who waits.
        ahead : Call
            The first collective in the queue of the rank's communication stream.
        """
        what = f"in {self.title()}"
        if rank not in self.enter:
            return f"{what}, behind {ahead.title()}"
        # A plan's transfers wait for earlier ones alone, so that only a rank can be missing.
        absent = [r for r in self.ranks if r not in self.enter]
        listed = ", ".join(map(str, absent[:8])) + (" ..." if len(absent) > 8 else "")
        return f"{what} for rank{'s' if len(absent) > 1 else ''} {listed} to enter"

    def title(self) -> str:
        """Name the collective, for messages."""
        return f"{self.op.plan.collective} {self.op.name!r}"
