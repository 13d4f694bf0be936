"""Process groups of rank programs, and the exchange and reduction of their tensors.

Reductions equal the plan's bit for bit (`folding`); all other collectives move whole arrays.

A rank enters a call when it has issued it and left the previous one. No rank leaves before the last
one has entered; a call without duration, such as `new_group`, ends at that instant.

A message starts once both ranks have posted it (rendezvous: gloo and NCCL buffer nothing) and
earlier messages of the pair have arrived. It takes the latency of its route, then flows at its fair
share of the links.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Array
from simdp.collectives import Plan
from simdp.collectives.ring import RingAllReduce
from simdp.engine.programs.folding import fold
from simdp.engine.programs.playing import Course, GroupTimes, MessageRoute, Playing
from simdp.engine.programs.records import (
    NOTHING,
    CallArguments,
    CallSignature,
    Handle,
    ProgramRecords,
    Stretching,
    deliver,
    listed,
)
from simdp.errors import ProgramError

OPS: dict[str, Any] = {
    "SUM": np.add,
    "AVG": np.add,
    "MAX": np.maximum,
    "MIN": np.minimum,
    "PRODUCT": np.multiply,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}
"""Operations of reductions, by torch's names."""

Values = list[Sequence[Array]]
"""For every place of the group, the values of its outputs."""


def _flat(arrays: Sequence[Array]) -> Array:
    if len(arrays) == 1:
        return arrays[0].reshape(-1)
    return np.concatenate([array if array.ndim == 1 else array.reshape(-1) for array in arrays])


def _reduced(given: Sequence[CallArguments], plan: Plan, op: str) -> Array:
    """Reduce all ranks' inputs; shape `(num_elements,)`."""
    buffers = [_flat(arguments.inputs) for arguments in given]
    with np.errstate(all="ignore"):  # as on a GPU, overflow gives inf without a warning
        total = fold(plan, buffers, OPS[op])
        return total / len(given) if op == "AVG" else total


def _all_reduce(given: Sequence[CallArguments], plan: Plan, op: str, root: int) -> Values:
    total, outputs = _reduced(given, plan, op), given[0].outputs
    if len(outputs) == 1:
        return [(total,)] * len(given)
    return [np.split(total, np.cumsum([array.size for array in outputs])[:-1])] * len(given)


def _reduce(given: Sequence[CallArguments], plan: Plan, op: str, root: int) -> Values:
    values: Values = [()] * len(given)
    values[root] = (_reduced(given, plan, op),)
    return values


def _reduce_scatter(given: Sequence[CallArguments], plan: Plan, op: str, root: int) -> Values:
    return [(piece,) for piece in np.split(_reduced(given, plan, op), len(given))]


def _broadcast(given: Sequence[CallArguments], plan: Plan, op: str, root: int) -> Values:
    value = given[root].inputs[0]
    return [() if place == root else (value,) for place in range(len(given))]


def _all_gather(given: Sequence[CallArguments], plan: Plan, op: str, root: int) -> Values:
    whole = [arguments.inputs[0] for arguments in given]
    joined = [] if len(given[0].outputs) == len(given) else [_flat(whole)]
    return [joined or whole] * len(given)


def _gather(given: Sequence[CallArguments], plan: Plan, op: str, root: int) -> Values:
    values: Values = [()] * len(given)
    values[root] = [arguments.inputs[0] for arguments in given]
    return values


def _scatter(given: Sequence[CallArguments], plan: Plan, op: str, root: int) -> Values:
    return [(piece,) for piece in given[root].inputs]


def _all_to_all(given: Sequence[CallArguments], plan: Plan, op: str, root: int) -> Values:
    return [[arguments.inputs[place] for arguments in given] for place in range(len(given))]


def _nothing(given: Sequence[CallArguments], plan: Plan, op: str, root: int) -> Values:
    return [()] * len(given)


EXCHANGES: dict[str, Callable[[Sequence[CallArguments], Plan, str, int], Values]] = {
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
    "barrier": _nothing,
    "broadcast": _broadcast,
    "gather": _gather,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "scatter": _scatter,
}
"""By collective: computes the outputs of every place from the arguments of every place, the group's
flat plan, the operation and the root's place. Those that only move give back their inputs."""

REDUCING = ("all_reduce", "reduce", "reduce_scatter")


def nbytes_of(collective: str, given: CallArguments, n: int) -> float | None:
    """Size of a collective's whole buffer, as `simdp.collectives.Algorithm.plan` counts it [bytes].

    ``given`` are the arguments of one of n ranks. None for an all_to_all of unequal pieces: its
    size depends on all ranks (`most_given`).
    """
    first = sum(array.nbytes for array in given.inputs)
    if collective in ("all_gather", "gather"):
        return float(n * first)
    if collective == "scatter":
        return float(n * given.outputs[0].nbytes)
    if collective == "broadcast":
        return float(max(array.nbytes for array in (*given.inputs, *given.outputs)))
    if collective == "all_to_all":
        pieces = {array.nbytes for array in (*given.inputs, *given.outputs)}
        return float(first) if len(pieces) == 1 else None
    return float(first)


def most_given(given: Sequence[CallArguments]) -> float:
    """Input size of the rank that sends most [bytes]."""
    return float(max(sum(array.nbytes for array in arguments.inputs) for arguments in given))


ALONE = RingAllReduce().plan(1, 0.0)
"""The plan of a group of one."""

Exchange = Callable[[Sequence[CallArguments]], None]
"""Executes a collective on the arguments of every place."""

Finish = Callable[[Handle, float], None]
"""Called with a rank's handle and the instant at which its part of a call ends [s]."""


class Collective:
    """A call of one group, the ``number``-th from 1.

    ``signature`` is the call of the first member that made it, rank ``first``. ``collective`` is a
    key of `EXCHANGES`, or None for a call that takes no time. ``exchange`` executes the call when
    the last rank enters; by default the function of `EXCHANGES` does, and each rank gets its
    outputs when it leaves.
    """

    def __init__(
        self,
        number: int,
        signature: CallSignature,
        first: int,
        collective: str | None,
        op: str,
        root: int,
        size: int,
        exchange: Exchange | None,
    ) -> None:
        self.exchange = exchange
        self.number, self.signature, self.first = number, signature, first
        self.collective, self.op, self.root = collective, op, root
        self.ready, self.enter, self.end = ([0.0] * size for _ in range(3))  # instants, by place
        self.given = [NOTHING] * size
        self.handles: list[Handle | None] = [None] * size
        self.missing = self.outside = self.unfinished = size
        self.waiting: list[int] = []  # places that enter once the call can be simulated
        self.course: Course | None = None
        self.slowdown = 0.0  # of work beside it
        self.values: Values = []


class ProgramGroup:
    """Ranks that call collectives together.

    ``finish`` is called for each rank that leaves a call, ``stretching`` for each collective that a
    rank issues.
    """

    def __init__(
        self,
        name: str,
        ranks: tuple[int, ...],
        backend: str,
        times: GroupTimes,
        playing: Playing,
        records: ProgramRecords,
        finish: Finish,
        stretching: Stretching | None = None,
    ) -> None:
        self._stretching = stretching
        self.name, self.ranks, self.backend = name, ranks, backend
        self.place = {rank: place for place, rank in enumerate(ranks)}
        self._members = np.array(ranks)
        self._times, self._playing, self._records, self._finish = times, playing, records, finish
        self._free = [0.0] * len(ranks)
        self._issued = [0] * len(ranks)
        self._left = [0] * len(ranks)  # number of calls that each place has left
        self._queue: deque[Collective] = deque()  # unfinished calls, in order
        self._over = 0

    def issue(
        self,
        rank: int,
        clock: float,
        signature: CallSignature,
        given: CallArguments,
        collective: str | None,
        op: str = "SUM",
        root: int = 0,
        blocked: bool = False,
        exchange: Exchange | None = None,
    ) -> Handle:
        """Issue a member's call of a collective; it enters at once if its stream is free.

        A ``blocked`` rank resumes in turn with the others, even if the call ends at once. With
        ``exchange`` the caller computes the tensors; times are unchanged.

        Raises
        ------
        ProgramError
            If members make different calls.
        """
        place = self.place[rank]
        number = self._issued[place] = self._issued[place] + 1
        if number > self._over + len(self._queue):
            size = len(self.ranks)
            call = Collective(number, signature, rank, collective, op, root, size, exchange)
            self._queue.append(call)
        else:
            call = self._queue[number - self._over - 1]
            if signature != call.signature:
                raise ProgramError(
                    f"call {number} of group {self.name} differs: rank {call.first} calls "
                    f"{call.signature}, but rank {rank} calls {signature}; let all ranks of a "
                    "group make the same calls in the same order."
                )
        handle = Handle(rank, signature, partial(self._blockers, call))
        handle.waiting = blocked
        call.ready[place], call.given[place], call.handles[place] = clock, given, handle
        call.missing -= 1
        if not call.missing:
            self._check(call)
        if self._stretching is not None and collective is not None and len(self.ranks) > 1:
            self._stretching.issued(handle)
        if self._left[place] == number - 1:
            self._take_part(call, place)
        return handle

    def _check(self, call: Collective) -> None:
        """Raise if an all_to_all's sent and expected sizes differ."""
        if call.collective != "all_to_all":
            return
        sent = np.array([[array.size for array in arguments.inputs] for arguments in call.given])
        expected = np.array(
            [[array.size for array in arguments.outputs] for arguments in call.given]
        ).T
        for source, target in np.argwhere(sent != expected)[:1].tolist():
            raise ProgramError(
                f"call {call.number} of group {self.name} differs: in {call.signature} rank "
                f"{self.ranks[source]} sends {sent[source, target]} elements to rank "
                f"{self.ranks[target]}, which expects {expected[source, target]}; give both the "
                "same."
            )

    def _take_part(self, call: Collective, place: int) -> None:
        """Enter a call at a place that has issued it and left the previous one."""
        call.enter[place] = max(call.ready[place], self._free[place])
        handle = call.handles[place]
        assert handle is not None
        handle.enter = call.enter[place]
        call.outside -= 1
        if call.collective is None or len(self.ranks) == 1:
            if not call.outside:
                call.values = self._values(call, ALONE)
                self._reached(call, range(len(self.ranks)), max(call.enter))
            return
        call.waiting.append(place)
        course = call.course = call.course or self._course(call, place)
        handle.slowdown = call.slowdown
        if course is None or (call.outside and course.served.seconds is not None):
            return
        if not call.outside:
            call.values = self._values(call, course.served.plan)
        for rank in call.waiting:
            self._playing.enter(course, rank, call.enter[rank])
        call.waiting.clear()

    def _course(self, call: Collective, place: int) -> Course | None:
        """Make the course of a call; None while its size is unknown."""
        assert call.collective is not None
        nbytes = nbytes_of(call.collective, call.given[place], len(self.ranks))
        if nbytes is None:
            if call.outside:
                return None
            nbytes = most_given(call.given)
        served = self._times.served(call.collective, nbytes, call.root)
        if self._stretching is not None:
            call.slowdown = self._times.slowdown(call.collective, nbytes, call.root)
            for handle in filter(None, call.handles):
                handle.slowdown = call.slowdown
        return Course(self, self._times, served, nbytes, partial(self._reached, call))

    def _values(self, call: Collective, plan: Plan) -> Values:
        """Compute every place's outputs from the present inputs."""
        if call.exchange is not None:
            call.exchange(call.given)
            call.given = [NOTHING] * len(self.ranks)  # it is not used any more
        if call.exchange is not None or call.collective is None:
            return [()] * len(self.ranks)
        given: Sequence[CallArguments] = call.given
        if call.collective not in REDUCING:  # ranks may change their inputs once they have left
            given = [CallArguments([array.copy() for array in a.inputs], a.outputs) for a in given]
        return EXCHANGES[call.collective](given, plan, call.op, call.root)

    def _reached(self, call: Collective, places: Sequence[int], now: float) -> None:
        """Leave a call at some places, and enter the next one."""
        for place in places:
            handle = call.handles[place]
            assert handle is not None
            if call.exchange is None:
                deliver(call.values[place], call.given[place])
            call.end[place] = self._free[place] = now
            self._left[place] += 1
            self._finish(handle, now)
        call.unfinished -= len(places)
        if not call.unfinished:
            self._record(call)
            self._queue.popleft()
            self._over += 1
            call.given, call.values, call.exchange = [], [], None  # free the ranks' memory
        for place in places:
            if self._issued[place] > self._left[place]:
                self._take_part(self._queue[self._left[place] - self._over], place)

    def _record(self, call: Collective) -> None:
        course = call.course
        if course is None:
            return
        plan = course.served.plan
        sent = np.asarray(plan.sends_per_rank * (course.nbytes / plan.num_chunks), float)
        of_group = "" if self.name == "default" else f"group {self.name}: "
        name = f"{of_group}{call.signature.name} {call.number}"
        ready, enter, end = (np.array(times) for times in (call.ready, call.enter, call.end))
        self._records.call(self._members, name, ready, enter, end, sent)

    def _blockers(self, call: Collective) -> str:
        """Describe the ranks that a call waits for, or the call that blocks it."""
        first = call if call.missing else self._queue[0]
        missing = [
            rank for rank, handle in zip(self.ranks, first.handles, strict=True) if handle is None
        ]
        before = "" if first is call else f", behind {first.signature} (call {first.number}),"
        return f"of group {self.name}, call {call.number},{before} for {listed(missing)}"


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
    """All messages of a program."""

    def __init__(self, playing: Playing, records: ProgramRecords, finish: Finish) -> None:
        self._playing, self._records, self._finish = playing, records, finish
        self._sends: dict[tuple[str, int], list[_Post]] = {}  # by group and receiver
        self._receives: dict[tuple[str, int], list[_Post]] = {}
        self._waiting: dict[Pair, deque[tuple[_Post, _Post]]] = {}
        self._ways: dict[Pair, MessageRoute] = {}
        self._free: dict[Pair, float] = {}  # when the pair's last message arrived

    def send(
        self,
        rank: int,
        clock: float,
        signature: CallSignature,
        tensor: Array,
        dst: int,
        tag: int,
        group: str,
    ) -> Handle:
        """Post a send, and match it with the first fitting receive."""
        handle = Handle(rank, signature, lambda: f"of group {group} for rank {dst} to receive")
        post = _Post(handle, tensor, dst, tag, clock)
        receives = self._receives.setdefault((group, dst), [])
        for receive in receives:
            if receive.peer in (None, rank) and receive.tag == tag:
                receives.remove(receive)
                self._match(post, receive, group)
                return handle
        self._sends.setdefault((group, dst), []).append(post)
        return handle

    def receive(
        self,
        rank: int,
        clock: float,
        signature: CallSignature,
        tensor: Array,
        src: int | None,
        tag: int,
        group: str,
    ) -> Handle:
        """Post a receive, and match it with the first fitting send; ``src`` None: of any rank."""
        whom = "any rank" if src is None else f"rank {src}"
        handle = Handle(rank, signature, lambda: f"of group {group} for {whom} to send")
        post = _Post(handle, tensor, src, tag, clock)
        sends = self._sends.setdefault((group, rank), [])
        for send in sends:
            if src in (None, send.handle.rank) and send.tag == tag:
                sends.remove(send)
                self._match(send, post, group)
                return handle
        self._receives.setdefault((group, rank), []).append(post)
        return handle

    def _match(self, send: _Post, receive: _Post, group: str) -> None:
        source, target = send.handle.rank, receive.handle.rank
        given, taken = send.tensor, receive.tensor
        if (given.dtype, given.size) != (taken.dtype, taken.size):
            raise ProgramError(
                f"rank {source} calls {send.handle.signature}, but rank {target} takes it with "
                f"{receive.handle.signature}; give both tensors the same dtype and size."
            )
        receive.handle.source = source
        pair = (group, source, target)
        line = self._waiting.setdefault(pair, deque())
        line.append((send, receive))
        if len(line) == 1:
            self._start(pair)

    def _start(self, pair: Pair) -> None:
        """Start the first message of a pair of ranks."""
        value = self._waiting[pair][0][0].tensor.copy()
        if pair not in self._ways:
            self._ways[pair] = self._playing.way(*pair[1:])
        arrived = partial(self._arrive, pair, value, self._playing.loop.now)
        self._playing.send(self._ways[pair], value.nbytes, arrived)

    def _arrive(self, pair: Pair, value: Array, begin: float, now: float) -> None:
        send, receive = self._waiting[pair].popleft()
        _, source, target = pair
        deliver([value], CallArguments((), (receive.tensor,)))
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
