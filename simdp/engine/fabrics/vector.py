"""The vectorised fabric: max-plus recurrences over whole rounds in NumPy.

All ranks run as one cohort whose clocks are arrays. Exact where no link is shared by two
connections: then a transfer's time does not depend on any other transfer's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simdp.collectives import Plan
from simdp.engine.network import Network
from simdp.engine.ops import Launch, Op, Wait, Work
from simdp.engine.slowdown import Slowdown
from simdp.results.trace import COMM_LANE, COMPUTE_LANE, FIRST_SEND_LANE, TraceBuilder

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Transfers:
    """The transfers of one round, with their times."""

    src: Ints
    dst: Ints
    start: Floats
    end: Floats


class VectorFabric:
    """Plays a script for all ranks at once.

    Parameters
    ----------
    network : Network
        Routes; no link may be shared by two connections of the script's plans.
    slowdown : Slowdown
        When work ends that the stragglers delay.
    trace : TraceBuilder
        Takes the spans.
    """

    def __init__(self, network: Network, slowdown: Slowdown, trace: TraceBuilder) -> None:
        self.network, self.slowdown, self.trace = network, slowdown, trace
        self._rounds: dict[Plan, list[_Round]] = {}

    def play(self, script: Iterator[Op]) -> None:
        """Charge the time of everything that the script yields."""
        n = self.network.cluster.world_size
        ranks = np.arange(n)
        clock, stream_free = np.zeros(n), np.zeros(n)
        done: dict[int, Floats] = {}
        for op in script:
            match op:
                case Work():
                    end = self.slowdown.finish(clock, op.seconds, ranks)
                    self.trace.add(
                        ranks,
                        op.step,
                        COMPUTE_LANE,
                        op.activity,
                        op.name,
                        clock,
                        end,
                        op.nbytes,
                    )
                    clock = end
                case Launch():
                    stream_free = done[op.call] = self._collective(op, clock, stream_free)
                case Wait():
                    for call in op.calls:
                        clock = np.maximum(clock, done.pop(call))

    def _collective(self, op: Launch, ready: Floats, stream_free: Floats) -> Floats:
        enter = np.maximum(ready, stream_free)
        recorded: list[Transfers] | None = [] if op.record else None
        end = self.times(op.plan, op.nbytes, enter, recorded)
        record_collective(self.trace, op, ready, enter, end)
        chunk_nbytes = op.nbytes / op.plan.num_chunks
        for t in recorded or ():
            self.trace.add(
                t.src,
                op.step,
                FIRST_SEND_LANE + t.dst,
                "transfer",
                op.name,
                t.start,
                t.end,
                chunk_nbytes,
            )
        return end

    def times(
        self, plan: Plan, nbytes: float, enter: Floats, recorded: list[Transfers] | None = None
    ) -> Floats:
        """When each rank is done with a collective.

        Parameters
        ----------
        plan : Plan
            Who sends what to whom.
        nbytes : float
            The whole buffer [bytes].
        enter : ndarray, shape `(world_size,)`
            When each rank enters [s].
        recorded : list, optional
            Takes the transfers of every round.

        Returns
        -------
        ndarray, shape `(world_size,)`
            When its last transfer, sent or received, is done [s].
        """
        connections = self.network.of_plan(plan)
        if not len(connections.src):
            return enter.copy()
        delay = connections.alpha + nbytes / plan.num_chunks / connections.bandwidth
        if plan.repeats:
            return self._repeating(plan, delay, enter, recorded)
        return self._general(plan, delay, enter, recorded)

    def _repeating(
        self, plan: Plan, delay: Floats, enter: Floats, recorded: list[Transfers] | None
    ) -> Floats:
        """Every round as the first: T[k] = max(T[k-1] here, T[k-1] into the source) + delay."""
        connections = self.network.of_plan(plan)
        src, dst = connections.src, connections.dst
        into_src = np.argsort(dst)[src]  # the transfer that ends where this one starts
        start = np.maximum(enter[src], enter[dst])
        end = start + delay
        gathered = np.empty_like(end)
        if recorded is not None:
            recorded.append(Transfers(src, dst, start.copy(), end.copy()))
        for _ in range(plan.num_rounds - 1):
            end.take(into_src, out=gathered, mode="clip")  # in range; "raise" would copy first
            np.maximum(gathered, end, out=start)
            np.add(start, delay, out=end)
            if recorded is not None:
                recorded.append(Transfers(src, dst, start.copy(), end.copy()))
        done = np.empty_like(end)
        done[src] = np.maximum(end, end[into_src])
        return done

    def _general(
        self, plan: Plan, delay: Floats, enter: Floats, recorded: list[Transfers] | None
    ) -> Floats:
        """Any plan: remember when each chunk arrived at each rank and each connection is free."""
        connections = self.network.of_plan(plan)
        entered = np.maximum(enter[connections.src], enter[connections.dst])
        free = entered.copy()
        arrived = np.zeros((plan.world_size, plan.num_chunks))
        done = enter.copy()
        for r in self._compiled(plan):
            start = np.maximum(free[r.connection], arrived[r.src, r.chunk])
            end = start + delay[r.connection]
            free[r.connection] = end
            np.maximum.at(arrived, (r.dst, r.chunk), end)
            np.maximum.at(done, r.src, end)
            np.maximum.at(done, r.dst, end)
            if recorded is not None:
                recorded.append(Transfers(r.src, r.dst, start, end))
        return done

    def _compiled(self, plan: Plan) -> list[_Round]:
        if plan not in self._rounds:
            connections = self.network.of_plan(plan)
            n = plan.world_size
            pairs = connections.src * n + connections.dst  # sorted
            self._rounds[plan] = [
                _Round(r.src, r.dst, r.chunk, np.searchsorted(pairs, r.src * n + r.dst))
                for r in plan.rounds()
            ]
        return self._rounds[plan]


@dataclass(frozen=True)
class _Round:
    src: Ints
    dst: Ints
    chunk: Ints
    connection: Ints


def record_collective(
    trace: TraceBuilder, op: Launch, ready: Floats, enter: Floats, end: Floats
) -> None:
    """Add the spans of a collective: each rank waits for the slowest to be ready, then takes part.

    Parameters
    ----------
    trace : TraceBuilder
        Takes the spans.
    op : Launch
        The collective.
    ready, enter, end : ndarray, shape `(world_size,)`
        When each rank's compute stream asks for it, when its communication stream is free for it,
        and when it is done [s]. A rank that is done before the last one is ready, as in a
        broadcast, has waited until then.
    """
    n = len(enter)
    if n == 1:
        return
    ranks = np.arange(n)
    begin = np.minimum(np.maximum(enter, ready.max()), end)
    name = f"{op.plan.collective} {op.name}"
    waits = begin > enter
    if waits.any():
        trace.add(ranks[waits], op.step, COMM_LANE, "wait", name, enter[waits], begin[waits])
    sent = op.plan.sends_per_rank * op.nbytes / op.plan.num_chunks
    trace.add(ranks, op.step, COMM_LANE, "comm", name, begin, end, sent)
