"""Job: ranks that play scripts together in the event fabric; several jobs can share a network."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import simpy

from simdp.cluster import Overheads
from simdp.collectives import Plan
from simdp.engine.clocks.call import Call
from simdp.engine.clocks.pace import Pace
from simdp.engine.network import Network
from simdp.engine.slowdown import Slowdown
from simdp.results.trace import TraceBuilder

NONE = Overheads()


class Job:
    """What the event fabric knows of a job; its ranks are numbered from 0.

    Parameters
    ----------
    network : Network
        Routes of its ranks.
    plans : mapping of int to sequence of Plan
        Every plan that its script may launch, by communication stream; what their connections share
        decides which links need sharing at all.
    slowdown : Slowdown
        When work ends that the stragglers delay.
    trace : TraceBuilder
        Takes the spans.
    overheads : Overheads
        How compute and collectives slow each other down; not at all, unless it is given.
    """

    def __init__(
        self,
        network: Network,
        plans: Mapping[int, Sequence[Plan]],
        slowdown: Slowdown,
        trace: TraceBuilder,
        overheads: Overheads = NONE,
    ) -> None:
        self.network, self.slowdown, self.trace = network, slowdown, trace
        self.world_size = slowdown.world_size
        self.plans, self.overheads = plans, overheads
        self.paces: list[Pace] = []  # of the ranks' compute, if anything slows it down
        self.under_way = [0] * self.world_size  # collectives, on each rank
        self.launched: dict[int, list[Call]] = {}  # by stream, if compute slows them down
        self._waited: dict[tuple[int, int], int] = {}
        self.calls: dict[int, Call] = {}
        self.blocked: dict[int, Call] = {}
        self.came: dict[int, tuple[float, simpy.Event]] = {}  # to a meeting under way
        self._queues: dict[tuple[int, int], deque[tuple[Call, float]]] = {}
        self.stream_free: dict[tuple[int, int], float] = {}
        self.held_back: dict[tuple[int, int], list[int]] = {}
        """Of a collective and a rank that has not left it: streams whose next one waits for it."""

    def queue(self, rank: int, stream: int) -> deque[tuple[Call, float]]:
        """Collectives that wait on a rank's stream, the one under way first."""
        return self._queues.setdefault((rank, stream), deque())

    def slow_down(self, rank: int, change: int) -> None:
        """Count a collective that begins or ends on a rank, beside which compute takes longer."""
        if self.paces:
            self.under_way[rank] += change
            beside = self.under_way[rank] > 0
            self.paces[rank].change(1.0 + self.overheads.compute_slowdown * beside)

    def stand_still(self, rank: int, number: int) -> None:
        """Let a rank wait for a collective, and so for all before it in its stream.

        Compute is said to slow down a collective until all ranks wait for it, though one may stand
        still in between, waiting for something else: so do the streams of the vectorised clock.
        """
        stream = self.calls[number].op.stream
        line, first = self.launched[stream], self._waited.get((rank, stream), 0)
        here = line.index(self.calls[number]) + 1
        self._waited[rank, stream] = max(first, here)
        for call in line[first:here]:
            for earlier in call.op.after:
                self.stand_still(rank, earlier)
            if call.groups is not None:
                call.groups.num_waiting += 1
                if call.groups.num_waiting == self.world_size:
                    call.groups.run_free()

    def _missing(self) -> str:
        """Name the ranks that have not come to a meeting."""
        absent = [str(rank) for rank in range(self.world_size) if rank not in self.came]
        listed = ", ".join(absent[:8]) + (" ..." if len(absent) > 8 else "")
        return f"rank{'s' if len(absent) > 1 else ''} {listed}"

    def stuck(self) -> list[Call]:
        """Collectives that not every rank has left."""
        return [call for call in self.calls.values() if not call.is_done]

    def explain(self) -> list[str]:
        """Say for each rank that cannot go on what it waits for."""
        stuck, lines = self.stuck(), []
        for rank in range(self.world_size):
            call = self.blocked.get(rank)
            if rank in self.came:
                lines.append(f"rank {rank} waits for {self._missing()} to come")
                continue
            if call is None:
                inside = [c for c in stuck if rank in c.enter and rank not in c.end]
                if not inside:
                    continue
                call = inside[0]
            ahead = self.queue(rank, call.op.stream)[0][0]
            lines.append(f"rank {rank} waits {call.reason(rank, ahead)}")
        return lines
