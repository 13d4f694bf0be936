"""Groups: process groups, each with a communication stream that takes its calls in order.

A call begins when every member has issued it and has left the one before; so has NCCL it. A call
that takes no time, such as the making of a group, is over when the last member has come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np

from simdp.arrays import Ints
from simdp.collectives.ring import RingAllReduce
from simdp.engine.programs.calls import NOTHING, Asked, Given, Handle, deliver, listed
from simdp.engine.programs.exchange import EXCHANGES, Values, nbytes_of
from simdp.engine.programs.fluid import Fluid, Job
from simdp.engine.programs.records import Records
from simdp.engine.programs.timing import GroupTimes
from simdp.errors import ProgramError

ALONE = RingAllReduce().plan(1, 0.0)
"""The plan of a group of one."""

Finish = Callable[[Handle, float], None]
"""Tells a rank that its part of a call is over [s]."""


class Call:
    """A collective of one group.

    Parameters
    ----------
    number : int
        Which of the group's calls, from 1.
    asked : Asked
        As the first member wrote it.
    first : int
        Who that was.
    collective : str or None
        A key of `EXCHANGES`; None for a call that takes no time.
    op, root
        As for `EXCHANGES`.
    size : int
        Of the group.
    """

    def __init__(
        self,
        number: int,
        asked: Asked,
        first: int,
        collective: str | None,
        op: str,
        root: int,
        size: int,
    ) -> None:
        self.number, self.asked, self.first = number, asked, first
        self.collective, self.op, self.root = collective, op, root
        self.ready = np.zeros(size)
        self.given = [NOTHING] * size
        self.handles: list[Handle | None] = [None] * size
        self.missing = size


class Group:
    """Some ranks that call collectives together.

    Parameters
    ----------
    name : str
        For messages.
    ranks : tuple of int
        Members, sorted.
    backend : str
        Its name in torch.
    times : GroupTimes
        What its calls take.
    fluid : Fluid
        All calls that are under way.
    records : Records
        Takes the spans.
    finish : callable
        Told of each rank that is through with a call.
    """

    def __init__(
        self,
        name: str,
        ranks: tuple[int, ...],
        backend: str,
        times: GroupTimes,
        fluid: Fluid,
        records: Records,
        finish: Finish,
    ) -> None:
        self.name, self.ranks, self.backend = name, ranks, backend
        self.place = {rank: place for place, rank in enumerate(ranks)}
        self._members = np.array(ranks)
        self._times, self._fluid, self._records, self._finish = times, fluid, records, finish
        self._free = np.zeros(len(ranks))
        self._issued = [0] * len(ranks)
        self._queue: deque[Call] = deque()  # those that are not over, in order
        self._over = 0
        self._under_way = False

    def issue(
        self,
        rank: int,
        clock: float,
        asked: Asked,
        given: Given,
        collective: str | None,
        op: str = "SUM",
        root: int = 0,
        blocked: bool = False,
    ) -> Handle:
        """Let a member call a collective; the last one starts it, if the stream is free.

        Who is ``blocked`` goes on in turn with the others, even if the call is over at once.

        Raises
        ------
        ProgramError
            If another member called something else.
        """
        place = self.place[rank]
        number = self._issued[place] = self._issued[place] + 1
        if number > self._over + len(self._queue):
            call = Call(number, asked, rank, collective, op, root, len(self.ranks))
            self._queue.append(call)
        else:
            call = self._queue[number - self._over - 1]
            if asked != call.asked:
                raise ProgramError(
                    f"call {number} of group {self.name} differs: rank {call.first} calls "
                    f"{call.asked}, but rank {rank} calls {asked}; let all ranks of a group make "
                    "the same calls in the same order."
                )
        handle = Handle(rank, asked, partial(self._blockers, call))
        handle.waiting = blocked
        call.ready[place], call.given[place], call.handles[place] = clock, given, handle
        call.missing -= 1
        if not call.missing:
            self._check(call)
            self._start_next()
        return handle

    def _check(self, call: Call) -> None:
        """Refuse an all_to_all in which somebody expects something else than he gets."""
        if call.collective != "all_to_all":
            return
        sent = np.array([[array.size for array in each.inputs] for each in call.given])
        expected = np.array([[array.size for array in each.outputs] for each in call.given]).T
        for source, target in np.argwhere(sent != expected)[:1].tolist():
            raise ProgramError(
                f"call {call.number} of group {self.name} differs: in {call.asked} rank "
                f"{self.ranks[source]} sends {sent[source, target]} elements to rank "
                f"{self.ranks[target]}, which expects {expected[source, target]}; give both the "
                "same."
            )

    def _start_next(self) -> None:
        """Start the first call of the queue, if all have come and the one before is over."""
        if self._under_way or not self._queue or self._queue[0].missing:
            return
        call = self._queue[0]
        enter = np.maximum(call.ready, self._free)
        if call.collective is None or len(self.ranks) == 1:
            values = self._values(call)
            self._queue.popleft()
            self._over += 1
            for place, handle in enumerate(call.handles):
                assert handle is not None
                deliver(values[place], call.given[place])
                self._finish(handle, float(enter.max()))
            self._start_next()
            return
        nbytes = nbytes_of(call.collective, call.given)
        served = self._times.served(call.collective, nbytes, call.root)
        exchange = EXCHANGES[call.collective]
        values = exchange(call.given, served.plan, call.op, call.root)
        ends = self._times.ends(served, nbytes, enter)
        sent = np.asarray(served.plan.sends_per_rank * (nbytes / served.plan.num_chunks), float)
        self._under_way = True

        def reached(places: Ints, instant: float) -> None:
            ends[places] = instant
            for place in places.tolist():
                handle = call.handles[place]
                assert handle is not None
                deliver(values[place], call.given[place])
                self._finish(handle, instant)

        def over() -> None:
            of_group = "" if self.name == "default" else f"group {self.name}: "
            name = f"{of_group}{call.asked.name} {call.number}"
            self._records.call(self._members, name, call.ready, enter, ends, sent)
            self._free = ends
            self._queue.popleft()
            self._over += 1
            self._under_way = False
            self._start_next()

        self._fluid.begin(Job(ends.copy(), served.links, reached, over))

    def _values(self, call: Call) -> Values:
        """What a call that takes no time leaves: a group of one keeps what it has."""
        if call.collective is None:
            return [()] * len(self.ranks)
        return EXCHANGES[call.collective](call.given, ALONE, call.op, call.root)

    def _blockers(self, call: Call) -> str:
        """Whom a call waits for: those who have not issued it, or what comes before it."""
        first = call if call.missing else self._queue[0]
        missing = [
            rank for rank, handle in zip(self.ranks, first.handles, strict=True) if handle is None
        ]
        before = "" if first is call else f", behind {first.asked} (call {first.number}),"
        return f"of group {self.name}, call {call.number},{before} for {listed(missing)}"
