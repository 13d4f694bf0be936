"""Messages: point-to-point transfers, which a send and a receive make together.

A message is on its way once both ranks have asked for it (a rendezvous: gloo and NCCL buffer
nothing) and the ones before it from the same sender to the same receiver are through. It takes the
latency of its route and its bytes at the narrowest link's bandwidth.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import NamedTuple

import numpy as np

from simdp.arrays import Array, Ints
from simdp.engine.network import Network
from simdp.engine.programs.calls import Asked, Given, Handle, deliver
from simdp.engine.programs.fluid import Fluid, Job
from simdp.engine.programs.groups import Finish
from simdp.engine.programs.records import Records
from simdp.errors import ProgramError

Pair = tuple[str, int, int]
"""A group, a sender and a receiver."""


class _Post(NamedTuple):
    """A send or a receive that waits for its counterpart."""

    handle: Handle
    tensor: Array
    peer: int | None
    tag: int
    ready: float


class Messages:
    """All messages of a program.

    Parameters
    ----------
    network : Network
        Routes.
    fluid : Fluid
        All calls that are under way.
    records : Records
        Takes the spans.
    finish : callable
        Told of each rank that is through with a message.
    """

    def __init__(self, network: Network, fluid: Fluid, records: Records, finish: Finish) -> None:
        self._network, self._fluid, self._records = network, fluid, records
        self._finish = finish
        self._sends: dict[tuple[str, int], list[_Post]] = {}  # by group and receiver
        self._receives: dict[tuple[str, int], list[_Post]] = {}
        self._waiting: dict[Pair, deque[tuple[_Post, _Post]]] = {}
        self._routes: dict[tuple[int, int], tuple[Ints, float, float]] = {}
        self._free: dict[Pair, float] = {}  # when the last message of a pair was through

    def send(
        self, rank: int, clock: float, asked: Asked, tensor: Array, dst: int, tag: int, group: str
    ) -> Handle:
        """Post a send; it meets the first receive that is meant for it."""
        handle = Handle(rank, asked, lambda: f"of group {group} for rank {dst} to receive")
        post = _Post(handle, tensor, dst, tag, clock)
        receives = self._receives.setdefault((group, dst), [])
        for found in receives:
            if found.peer in (None, rank) and found.tag == tag:
                receives.remove(found)
                self._match(post, found, group)
                return handle
        self._sends.setdefault((group, dst), []).append(post)
        return handle

    def receive(
        self,
        rank: int,
        clock: float,
        asked: Asked,
        tensor: Array,
        src: int | None,
        tag: int,
        group: str,
    ) -> Handle:
        """Post a receive; it meets the first send that is meant for it, of any rank if None."""
        whom = "any rank" if src is None else f"rank {src}"
        handle = Handle(rank, asked, lambda: f"of group {group} for {whom} to send")
        post = _Post(handle, tensor, src, tag, clock)
        sends = self._sends.setdefault((group, rank), [])
        for found in sends:
            if src in (None, found.handle.rank) and found.tag == tag:
                sends.remove(found)
                self._match(found, post, group)
                return handle
        self._receives.setdefault((group, rank), []).append(post)
        return handle

    def _match(self, send: _Post, receive: _Post, group: str) -> None:
        source, target = send.handle.rank, receive.handle.rank
        given, taken = send.tensor, receive.tensor
        if (given.dtype, given.size) != (taken.dtype, taken.size):
            raise ProgramError(
                f"rank {source} calls {send.handle.asked}, but rank {target} takes it with "
                f"{receive.handle.asked}; give both tensors the same dtype and size."
            )
        receive.handle.source = source
        pair = (group, source, target)
        line = self._waiting.setdefault(pair, deque())
        line.append((send, receive))
        if len(line) == 1:
            self._start(pair)

    def _start(self, pair: Pair) -> None:
        """Set the first message of a pair of ranks on its way."""
        send, receive = self._waiting[pair][0]
        _, source, target = pair
        value = send.tensor.copy()
        used, alpha, bandwidth = self._route(source, target)
        now = max(self._fluid.now, send.ready, receive.ready)
        end = now + alpha + value.nbytes / bandwidth

        def reached(places: Ints, instant: float) -> None:
            deliver([value], Given((), (receive.tensor,)))
            self._finish(send.handle, instant)
            self._finish(receive.handle, instant)

        over = partial(self._over, pair, now, value.nbytes)
        self._fluid.begin(Job(np.array([end]), used, reached, over))

    def _route(self, source: int, target: int) -> tuple[Ints, float, float]:
        """Links, latency [s] and bandwidth [bytes/s] from one rank to another one."""
        key = source, target
        if key not in self._routes:
            links, alpha, bandwidth = self._network.connect(np.array([source]), np.array([target]))
            self._routes[key] = np.unique(links[links >= 0]), float(alpha[0]), float(bandwidth[0])
        return self._routes[key]

    def _over(self, pair: Pair, begin: float, nbytes: int) -> None:
        send, receive = self._waiting[pair].popleft()
        _, source, target = pair
        free, end = self._free.get(pair, 0.0), send.handle.end
        for post, name, sent in (
            (send, f"send dst={target}", float(nbytes)),
            (receive, f"recv src={source}", 0.0),
        ):
            enter = max(post.ready, free)
            self._records.message(post.handle.rank, name, enter, begin, end, sent)
        self._free[pair] = end
        if self._waiting[pair]:
            self._start(pair)
