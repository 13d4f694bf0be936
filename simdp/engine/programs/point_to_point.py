"""Point to point: messages, which a send and a receive make together.

A message is on its way once both ranks have asked for it (a rendezvous: gloo and NCCL buffer
nothing) and the ones before it from the same sender to the same receiver are through. It takes the
latency of its route, and then its bytes flow at their fair share of the links.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import NamedTuple

from simdp.arrays import Array
from simdp.engine.programs.calls import Asked, Given, Handle, deliver
from simdp.engine.programs.groups import Finish
from simdp.engine.programs.playing import Playing, Way
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


class PointToPoint:
    """All messages of a program.

    Parameters
    ----------
    playing : Playing
        All that is under way.
    records : Records
        Takes the spans.
    finish : callable
        Told of each rank that is through with a message.
    """

    def __init__(self, playing: Playing, records: Records, finish: Finish) -> None:
        self._playing, self._records, self._finish = playing, records, finish
        self._sends: dict[tuple[str, int], list[_Post]] = {}  # by group and receiver
        self._receives: dict[tuple[str, int], list[_Post]] = {}
        self._waiting: dict[Pair, deque[tuple[_Post, _Post]]] = {}
        self._ways: dict[Pair, Way] = {}
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
        value = self._waiting[pair][0][0].tensor.copy()
        if pair not in self._ways:
            self._ways[pair] = self._playing.way(*pair[1:])
        arrived = partial(self._arrive, pair, value, self._playing.loop.now)
        self._playing.send(self._ways[pair], value.nbytes, arrived)

    def _arrive(self, pair: Pair, value: Array, begin: float, now: float) -> None:
        send, receive = self._waiting[pair].popleft()
        _, source, target = pair
        deliver([value], Given((), (receive.tensor,)))
        free = self._free.get(pair, 0.0)
        for post, name, sent in (
            (send, f"send dst={target}", float(value.nbytes)),
            (receive, f"recv src={source}", 0.0),
        ):
            enter = max(post.ready, free)
            self._records.message(post.handle.rank, name, enter, begin, now, sent)
            self._finish(post.handle, now)
        self._free[pair] = now
        if self._waiting[pair]:
            self._start(pair)
