"""Call: one collective under way in the event fabric."""

from __future__ import annotations

import simpy

from simdp.engine.fabrics.dependencies import Dependencies
from simdp.engine.ops import Launch


class Call:
    """What each transfer of a collective still waits for, and when each rank came and went.

    Parameters
    ----------
    op : Launch
        The collective.
    needs : Dependencies
        Of its plan; counted down here in copies.
    """

    def __init__(self, op: Launch, needs: Dependencies) -> None:
        self.op, self.needs = op, needs
        self.chunk_nbytes = op.nbytes / op.plan.num_chunks
        self.pending = needs.pending.copy()
        self.gate_pending = needs.gate_pending.copy()
        self.touching = needs.touching.copy()
        n = op.plan.world_size
        self.ready: list[float | None] = [None] * n
        self.enter: list[float | None] = [None] * n
        self.end: list[float | None] = [None] * n
        self.num_done = 0
        self.waiting: dict[int, simpy.Event] = {}
        count = len(needs.src)
        self.start_of = [0.0] * count if op.record else []
        self.end_of = [0.0] * count

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
        if self.enter[rank] is None:
            return f"{what}, behind {ahead.title()}"
        # A plan's transfers wait for earlier ones alone, so that only a rank can be missing.
        absent = [r for r, instant in enumerate(self.enter) if instant is None]
        listed = ", ".join(map(str, absent[:8])) + (" ..." if len(absent) > 8 else "")
        return f"{what} for rank{'s' if len(absent) > 1 else ''} {listed} to enter"

    def title(self) -> str:
        """Name the collective, for messages."""
        return f"{self.op.plan.collective} {self.op.name!r}"
