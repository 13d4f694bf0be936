"""Messages between workers and their server: each flows at its fair share of the links."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import simpy

from simdp.collectives import Part, Plan, Round
from simdp.collectives.plans.plan import even_offsets
from simdp.engine.clocks.links import Links
from simdp.engine.clocks.loop import Loop, turn_of
from simdp.engine.clocks.wires import Wires
from simdp.engine.network import Network
from simdp.engine.network.traffic import Traffic


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
        Where workers wait for them.
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
        self._plans = {pair: message(*pair, world_size) for pair in pairs}
        self._links = Links(loop, network.cluster)
        self._wires = Wires(self._links)
        self._wire = {
            pair: self._wires.lay(pair, network, plan.everything[0], world_size)[*pair, 0]
            for pair, plan in self._plans.items()
        }
        self._wires.find_owners()

    def carry(
        self, src: int, dst: int, step: int, nbytes: float
    ) -> Generator[simpy.Event, Any, float]:
        """Let a process wait for a message that is sent now; return when it is there [s].

        That is at once where both ends are one device's.

        Parameters
        ----------
        src, dst : int
            Ranks, one of which is the server's.
        step : int
            To which it belongs.
        nbytes : float
            Its size [bytes].
        """
        loop, turn = self._loop, turn_of(src)
        now = loop.now
        if src == dst:
            return float((yield loop.until(now, turn)))
        wire, plan = self._wire[src, dst], self._plans[src, dst]
        begin = now + self._before + self._wires.alpha[wire]
        if self._wires.own[wire] or not nbytes:
            end = yield loop.until(begin + nbytes / self._wires.bandwidth[wire], turn)
        else:
            yield loop.until(begin, turn)
            end = yield self._links.flow(self._wires.route[wire], nbytes)
        launched = self._traffic.launched
        launched[step, plan] = launched.get((step, plan), 0.0) + nbytes
        return float(end)
