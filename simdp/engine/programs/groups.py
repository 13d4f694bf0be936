"""Groups: process groups, each with a communication stream that takes its calls in order.

A rank takes part in a call from when it has issued it and has left the one before. Nobody leaves
before the last one has come, whose data nobody has until then. A call that takes no time, such as
the making of a group, is over at that instant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from simdp.collectives import Plan
from simdp.collectives.ring import RingAllReduce
from simdp.engine.programs.calls import NOTHING, Asked, Given, Handle, deliver, listed
from simdp.engine.programs.exchange import EXCHANGES, Values, most_given, nbytes_of
from simdp.engine.programs.playing import Course, Playing
from simdp.engine.programs.records import Records
from simdp.engine.programs.stretching import Stretching
from simdp.engine.programs.timing import GroupTimes
from simdp.errors import ProgramError

ALONE = RingAllReduce().plan(1, 0.0)
"""The plan of a group of one."""

Exchange = Callable[[Sequence[Given]], None]
"""Carries a collective out: from what every place gave to what every place gets."""

Finish = Callable[[Handle, float], None]
"""Tells a rank that its part of a call is over [s]."""


class Collective:
    """A call of one group.

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
    exchange : callable or None
        Carries the call out, as soon as the last rank takes part; None for what `EXCHANGES` has,
        which ranks get when they are through.
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
        exchange: Exchange | None,
    ) -> None:
        self.exchange = exchange
        self.number, self.asked, self.first = number, asked, first
        self.collective, self.op, self.root = collective, op, root
        self.ready, self.enter, self.end = ([0.0] * size for _ in range(3))  # instants, by place
        self.given = [NOTHING] * size
        self.handles: list[Handle | None] = [None] * size
        self.missing = self.outside = self.unfinished = size
        self.waiting: list[int] = []  # places that may take part as soon as it can be played
        self.course: Course | None = None
        self.values: Values = []


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
    playing : Playing
        All that is under way.
    records : Records
        Takes the spans.
    finish : callable
        Told of each rank that is through with a call.
    stretching : Stretching, optional
        Told of each collective that a rank takes part in.
    """

    def __init__(
        self,
        name: str,
        ranks: tuple[int, ...],
        backend: str,
        times: GroupTimes,
        playing: Playing,
        records: Records,
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
        self._left = [0] * len(ranks)  # how many calls each place is through with
        self._queue: deque[Collective] = deque()  # those that are not over, in order
        self._over = 0

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
        exchange: Exchange | None = None,
    ) -> Handle:
        """Let a member call a collective; it takes part at once, if its stream is free.

        Who is ``blocked`` goes on in turn with the others, even if the call is over at once. What
        the collective leaves in tensors may be the caller's ``exchange``; times are its own.

        Raises
        ------
        ProgramError
            If another member called something else.
        """
        place = self.place[rank]
        number = self._issued[place] = self._issued[place] + 1
        if number > self._over + len(self._queue):
            size = len(self.ranks)
            call = Collective(number, asked, rank, collective, op, root, size, exchange)
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
        if self._stretching is not None and collective is not None and len(self.ranks) > 1:
            self._stretching.issued(handle)
        if self._left[place] == number - 1:
            self._take_part(call, place)
        return handle

    def _check(self, call: Collective) -> None:
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

    def _take_part(self, call: Collective, place: int) -> None:
        """Let a member take part, which has issued the call and left the one before."""
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
        if course is None or (call.outside and course.served.seconds is not None):
            return
        if not call.outside:
            call.values = self._values(call, course.served.plan)
        for each in call.waiting:
            self._playing.enter(course, each, call.enter[each])
        call.waiting.clear()

    def _course(self, call: Collective, place: int) -> Course | None:
        """What is to be played, as far as one member can tell."""
        assert call.collective is not None
        nbytes = nbytes_of(call.collective, call.given[place], len(self.ranks))
        if nbytes is None:
            if call.outside:
                return None
            nbytes = most_given(call.given)
        served = self._times.served(call.collective, nbytes, call.root)
        return Course(self, self._times, served, nbytes, partial(self._reached, call))

    def _values(self, call: Collective, plan: Plan) -> Values:
        """What every place gets, from what all of them hold now."""
        if call.exchange is not None:
            call.exchange(call.given)
        if call.exchange is not None or call.collective is None:
            return [()] * len(self.ranks)
        return EXCHANGES[call.collective](call.given, plan, call.op, call.root)

    def _reached(self, call: Collective, places: Sequence[int], now: float) -> None:
        """Let places leave a call, for the next one."""
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
            call.given, call.values, call.exchange = [], [], None  # which hold the ranks' memory
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
        name = f"{of_group}{call.asked.name} {call.number}"
        ready, enter, end = (np.array(each) for each in (call.ready, call.enter, call.end))
        self._records.call(self._members, name, ready, enter, end, sent)

    def _blockers(self, call: Collective) -> str:
        """Whom a call waits for: those who have not issued it, or what comes before it."""
        first = call if call.missing else self._queue[0]
        missing = [
            rank for rank, handle in zip(self.ranks, first.handles, strict=True) if handle is None
        ]
        before = "" if first is call else f", behind {first.asked} (call {first.number}),"
        return f"of group {self.name}, call {call.number},{before} for {listed(missing)}"
