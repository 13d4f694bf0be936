"""Messages between workers and their server: each flows at its fair share of the links."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from simdp.collectives import Part, Plan, Round
from simdp.collectives.plans.plan import even_offsets
from simdp.engine.fabrics.flows import Flows
from simdp.engine.fabrics.wires import Wires
from simdp.engine.network import Network
from simdp.engine.network.traffic import Traffic
from simdp.engine.server.agenda import SHARES, Action, Agenda


def _one_transfer() -> Iterator[Round]:
    here, there = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    yield Round(here, there, np.zeros(1, dtype=np.int64), reduce=False)


_MESSAGE = Plan("message", 2, 1, 0, _one_transfer, even_offsets(1))


def message(src: int, dst: int, world_size: int) -> Plan:
    """Plan a message: one chunk, from one rank to another."""
    zero = np.zeros(1, dtype=np.int64)
    part = Part(_MESSAGE, np.array([[src, dst]]), zero, 1, zero, ())
    return Plan("message", world_size, 1, src, lambda: iter(()), even_offsets(1), parts=(part,))


class Messages:
    """Carries messages between the server's device and the others.

    Parameters
    ----------
    agenda : Agenda
        Where they arrive.
    network : Network
        Routes.
    server, world_size : int
        The rank whose device holds the server, and how many there are.
    before : float
        What the software takes before the bytes of a message move [s].
    traffic : Traffic
        Told of every message that arrives.
    """

    def __init__(
        self,
        agenda: Agenda,
        network: Network,
        server: int,
        world_size: int,
        before: float,
        traffic: Traffic,
    ) -> None:
        self._agenda, self._traffic, self._before = agenda, traffic, before
        others = [rank for rank in range(world_size) if rank != server]
        pairs = [(r, server) for r in others] + [(server, r) for r in others]
        self._plans = [message(src, dst, world_size) for src, dst in pairs]
        self._number = {pair: number for number, pair in enumerate(pairs)}
        lines = [(network, list(plan.everything), world_size) for plan in self._plans]
        self._wires = Wires(network.cluster, lines)
        self._flows = Flows(self._wires.capacity, self._wires.longest)
        self._settling, self._next_end = -1.0, np.inf

    def send(
        self, src: int, dst: int, step: int, nbytes: float, now: float, arrived: Action
    ) -> None:
        """Send a message now; it arrives at once where both ends are one device's.

        Parameters
        ----------
        src, dst : int
            Ranks, one of which is the server's.
        step : int
            To which it belongs.
        nbytes : float
            Its size [bytes].
        now : float
            When [s].
        arrived : callable
            Called when all of it is there, with that instant.
        """
        if src == dst:
            self._agenda.at(now, arrived, src)
            return
        wire = self._wires.number[self._number[src, dst]][src, dst, 0]
        done = partial(self._count, self._plans[self._number[src, dst]], step, nbytes, arrived)
        begin = now + self._before + self._wires.alpha[wire]
        if self._wires.own[wire] or not nbytes:
            self._agenda.at(begin + nbytes / self._wires.bandwidth[wire], done, src)
        else:
            self._agenda.at(begin, partial(self._flow, wire, nbytes, done), src)

    def _count(self, plan: Plan, step: int, nbytes: float, arrived: Action, now: float) -> None:
        key = (step, plan)
        self._traffic.launched[key] = self._traffic.launched.get(key, 0.0) + nbytes
        arrived(now)

    # Sharing links -----------------------------------------------------------------------------

    def _flow(self, wire: int, nbytes: float, done: Action, now: float) -> None:
        self._flows.join(self._wires.route[wire], nbytes, done)
        self._settle_at(now)

    def _settle_at(self, now: float) -> None:
        if self._settling != now:  # once for all that begins or ends at an instant
            self._settling = now
            self._agenda.at(now, self._settle, stage=SHARES)

    def _settle(self, now: float) -> None:
        self._settling = -1.0

        def arrived(done: Action) -> None:
            done(now)

        self._next_end = self._flows.settle(now, arrived)
        if self._next_end < np.inf:
            self._agenda.at(self._next_end, self._flow_ends)

    def _flow_ends(self, now: float) -> None:
        if now == self._next_end:  # else the shares have changed since it was announced
            self._settle_at(now)
