"""Messages between workers and their server: each flows at its fair share of the links."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from simdp.collectives import Part, Plan, Round
from simdp.collectives.plans.plan import even_offsets
from simdp.engine.clocks.links import Links
from simdp.engine.clocks.loop import Loop, turn_of
from simdp.engine.clocks.wires import Wires
from simdp.engine.network import Network
from simdp.engine.network.traffic import Traffic
from simdp.engine.server.updates import Action


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
    loop : Loop
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
        loop: Loop,
        network: Network,
        server: int,
        world_size: int,
        before: float,
        traffic: Traffic,
    ) -> None:
        self._loop, self._traffic, self._before = loop, traffic, before
        others = [rank for rank in range(world_size) if rank != server]
        pairs = [(r, server) for r in others] + [(server, r) for r in others]
        self._plans = [message(src, dst, world_size) for src, dst in pairs]
        self._number = {pair: number for number, pair in enumerate(pairs)}
        self._links = Links(loop, network.cluster)
        self._wires = Wires(self._links)
        self._wire = {
            pair: self._wires.lay(pair, network, plan.everything[0], world_size)[*pair, 0]
            for pair, plan in zip(pairs, self._plans, strict=True)
        }
        self._wires.find_owners()

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
            self._loop.in_turn(now, turn_of(src), arrived)
            return
        wire, turn = self._wire[src, dst], turn_of(src)
        done = partial(self._count, self._plans[self._number[src, dst]], step, nbytes, arrived)
        begin = now + self._before + self._wires.alpha[wire]
        if self._wires.own[wire] or not nbytes:
            self._loop.in_turn(begin + nbytes / self._wires.bandwidth[wire], turn, done)
        else:
            self._loop.in_turn(begin, turn, partial(self._flow, wire, nbytes, done))

    def _count(self, plan: Plan, step: int, nbytes: float, arrived: Action, now: float) -> None:
        key = (step, plan)
        self._traffic.launched[key] = self._traffic.launched.get(key, 0.0) + nbytes
        arrived(now)

    def _flow(self, wire: int, nbytes: float, done: Action, now: float) -> None:
        self._links.join(self._wires.route[wire], nbytes, done)
