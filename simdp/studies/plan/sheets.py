"""Sheets: what a steady step asks of a rank, read off its operations, and the least it may take.

A sheet knows no device, no network and no micro-batch: it counts calls, bytes and launches between
one meeting and the next. `Sheet.least` charges it for many clusters and micro-batches at once.

Why no simulated step can be shorter
------------------------------------
Every clock is a recurrence of sums and maxima over instants, with times that are not negative: work
begins when what is before it on the rank is done, a collective when its stream is free, all that it
comes after is over and its last rank has come, and a rank goes on when what it waits for is over.
Let one rank take part in it alone, so that it never waits for another one, let each piece of work
take no longer than on any rank, and each collective no longer than it takes with nothing beside it.
Every instant is then at most as late, by induction over the operations. Slowdowns of compute and
collectives beside each other, stragglers that make slower, shared links and compression only add.

A step begins when all of the step before is done on the rank. What is still under way of that one
counts as done, which is earlier again; but then the end that a step is counted from is its own, so
that steps whose collectives outlive them have no bound but zero.

Of many micro-steps all but the first and the last do the same. Let x be the instants at which the
rank's streams are free. A further micro-step is x -> A x, which is monotone, and adds d to all that
is later by d. So if A x >= x + d in every component, then also A A x >= x + 2 d, and so on: d is
the least by which any stream moved on in one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simdp.arrays import Bools, Floats
from simdp.engine.readers.footprints import footprint_of
from simdp.scenario import Scenario
from simdp.steps import ops, unit_ops
from simdp.steps.bucket import Group
from simdp.steps.facts import Facts
from simdp.steps.offload import HostCopy
from simdp.steps.program import called_by, flat
from simdp.workload.step_costs import update_seconds

MICRO_STEPS = 4
"""Of a step with more: the first, two that are like all between, and the last."""

BYTES, HOOKS, LAUNCHES, HOST_BYTES, KERNELS = range(5)
"""Columns of what is no call: bytes of the device's memory, hooks, collectives that are started,
bytes of the host's memory, kernels of an update's loop over tensors."""

NUM_BESIDE = 5

UPDATES = NUM_BESIDE
"""The column after these: updates, whose bytes or launches over lists count, what takes longer."""

NUM_COLUMNS = NUM_BESIDE + 1


class Asks(NamedTuple):
    """A collective that is started.

    Attributes
    ----------
    tag : int or None
        Its number in the step; None where the rank waits for it at once.
    collective, nbytes, group
        As `simdp.steps.program.Called`.
    stream : int
        Which takes it.
    wait, after
        As `simdp.steps.ops.AllReduce`.
    """

    tag: int | None
    collective: str
    nbytes: float
    group: Group
    stream: int
    wait: float
    after: tuple[int, ...]


Event = int | Asks | tuple[int, ...]
"""A row of work, a collective that is started, or tags that are waited for."""


class OneUpdate(NamedTuple):
    """What an update asks for, each of the rank that has least of it.

    Attributes
    ----------
    scaled, moved : float
        What scaling moves, and the optimizer [bytes].
    over_lists, in_loop : float
        Launches of its kernels over lists of tensors, and of its loop over tensors.
    """

    scaled: float
    moved: float
    over_lists: float
    in_loop: float


class Prices(NamedTuple):
    """What a sheet is charged for, for many points.

    Attributes
    ----------
    calls : dict of str to ndarray, shape `(num_calls, num_points)`
        Forward, backward and tail of each call [s].
    beside : ndarray, shape `(NUM_BESIDE, num_points)`
        By `BYTES` and so on [s].
    message : ndarray, shape `(num_points,)`
        Before each collective [s].
    first : ndarray, shape `(num_points,)`
        At the beginning of a step [s].
    collective : callable
        Of what is asked for, the least that it takes, shape `(num_points,)` [s].
    """

    calls: Mapping[str, Floats]
    beside: Floats
    message: Floats
    first: Floats
    collective: Callable[[Asks], Floats]


class Sheet:
    """What a steady step of one program asks for.

    Parameters
    ----------
    scenario : Scenario
        With one micro-step, or with `MICRO_STEPS`.

    Attributes
    ----------
    is_closed : bool
        Whether all collectives of a step are over when it is.
    groups : list of ProcessGroups
        Of the program.
    update : OneUpdate
        What each update asks for.
    """

    def __init__(self, scenario: Scenario) -> None:
        program = scenario.program
        self.groups, facts = program.groups, program.facts
        self._streams: dict[Group, int] = {None: 0, **{g.name: g.stream for g in self.groups}}
        self._num_calls = len(facts.graph.calls) + 1
        self._has_loss = scenario.workload.loss.kind != "none"
        self._beside = _Beside(scenario, facts)
        self.update = self._beside.of_update()
        self.segments: list[list[Event]] = []
        self._rows: list[Floats] = []
        started: set[int] = set()
        segment = list[Event]()
        for op in flat(program.steady):
            if isinstance(op, ops.Batch) and any(isinstance(e, int | Asks) for e in segment):
                self.segments.append(segment)
                segment = []
            self._add(op, segment)
            last = segment[-1] if segment else None
            if isinstance(op, ops.Wait):
                started -= set(op.tags)
            elif isinstance(last, Asks) and last.tag is not None:
                started.add(last.tag)
        self.segments.append(segment)
        self.is_closed = not started
        self.rows: Floats = np.array(self._rows).reshape(-1, 3 * self._num_calls + NUM_COLUMNS)
        del self._beside, self._rows  # so that little is sent between processes

    def _add(self, op: ops.Op, segment: list[Event]) -> None:
        called = called_by(op)
        if called is not None:
            self._count(segment, LAUNCHES, 1.0)
            tag: int | None = getattr(op, "tag", None)
            after = tuple(getattr(op, "after", ()))
            stream = self._streams.get(called.group, 0)
            wait = float(getattr(op, "wait", 0.0))
            segment.append(
                Asks(tag, called.collective, called.nbytes, called.group, stream, wait, after)
            )
            return
        match op:
            case ops.Wait():
                if op.tags:
                    segment.append(tuple(op.tags))
            case ops.Forward():
                self._call(segment, 0, op.call)
            case ops.Backward():
                self._call(segment, 1, op.call)
            case ops.Tail():
                self._call(segment, 2, op.call)
            case ops.Copy() | unit_ops.Unshard():
                self._count(segment, BYTES, 2 * op.nbytes)
            case HostCopy():
                self._count(segment, HOST_BYTES, op.nbytes)
            case ops.Fill():
                self._count(segment, HOOKS, 1.0)
                if op.is_copied:
                    self._count(segment, BYTES, 2.0 * self._beside.nbytes((op.name,)))
            case ops.Take():
                if op.is_copied:
                    self._count(segment, BYTES, 2.0 * self._beside.nbytes(op.bucket.names))
            case ops.Update():
                self._update(segment)

    def _update(self, segment: list[Event]) -> None:
        self._count(segment, BYTES, self.update.scaled)
        self._count(segment, KERNELS, self.update.in_loop)
        self._count(segment, UPDATES, 1.0)

    def _row(self, segment: list[Event]) -> Floats:
        """The row of work that is being added to."""
        if not segment or not isinstance(segment[-1], int):
            segment.append(len(self._rows))
            self._rows.append(np.zeros(3 * self._num_calls + NUM_COLUMNS))
        return self._rows[-1]

    def _call(self, segment: list[Event], which: int, call: int) -> None:
        if call < self._num_calls - 1 or self._has_loss:
            self._row(segment)[which * self._num_calls + call] += 1

    def _count(self, segment: list[Event], column: int, amount: float) -> None:
        self._row(segment)[3 * self._num_calls + column] += amount

    def work(self, prices: Prices) -> Floats:
        """How long each row takes, shape `(num_rows, num_points)` [s]."""
        num_points = prices.beside.shape[1]
        calls = np.zeros((3 * self._num_calls, num_points))
        for number, activity in enumerate(("forward", "backward", "tail")):
            each = prices.calls.get(activity)
            if each is not None:
                first = number * self._num_calls
                calls[first : first + min(len(each), self._num_calls)] = each[: self._num_calls]
        beside = prices.beside
        update = update_seconds(
            self.update.moved * beside[BYTES], self.update.over_lists * beside[KERNELS]
        )
        found: Floats = self.rows @ np.concatenate([calls, beside, np.atleast_2d(update)])
        return found

    def least(self, prices: Prices, micro_steps: Floats) -> tuple[Floats, Floats]:
        """The least that a step takes, and what its calls take.

        Parameters
        ----------
        prices : Prices
            Of each point.
        micro_steps : ndarray, shape `(num_points,)`
            Of a step: 1 for all points, or 2 and more, as the sheet has.

        Returns
        -------
        step, calls : ndarray, shape `(num_points,)`
            [s].
        """
        nothing = prices._replace(beside=np.zeros_like(prices.beside))
        calls = self._sum(self.work(nothing), micro_steps)
        seconds = self.work(prices)
        busy = prices.first + self._sum(seconds, micro_steps)
        rank = _Rank(prices, seconds)
        if not self.is_closed:
            return np.zeros_like(busy), calls
        first, *between, last = self.segments if len(self.segments) > 1 else [[], *self.segments]
        rank.play(first)
        for number, segment in enumerate(between):
            rank.play(segment, micro_steps - 2 - number >= 1)
        if between:
            rank.repeat(np.maximum(micro_steps - 2 - len(between), 0.0))
        rank.play(last)
        return np.maximum(rank.end(), busy), calls

    def _sum(self, seconds: Floats, micro_steps: Floats) -> Floats:
        """All work of a step, shape `(num_points,)` [s]."""
        nothing = np.zeros(seconds.shape[1])
        each = [sum((seconds[e] for e in s if isinstance(e, int)), nothing) for s in self.segments]
        if len(each) == 1:
            return each[0]
        found: Floats = each[0] + each[-1] + (micro_steps - 2) * each[1]
        return found


class _Beside:
    """What operations move beside the model's own calls.

    Parameters
    ----------
    scenario : Scenario
        Whose they are.
    facts : Facts
        Of its program.
    """

    def __init__(self, scenario: Scenario, facts: Facts) -> None:
        self._scenario, self._facts = scenario, facts
        self._footprint = footprint_of(scenario, facts, scenario.program.partition)

    def nbytes(self, names: Sequence[str]) -> float:
        """Of the gradients of some parameters [bytes]."""
        return float(self._facts.num_elements(tuple(names)) * self._facts.itemsize)

    def of_update(self) -> OneUpdate:
        """What the rank that has least of it is asked for; nothing on the host."""
        kept, workload = self._footprint, self._scenario.workload
        if self._scenario.strategy.updates_on_host or workload.compute.kind == "profile":
            return OneUpdate(0.0, 0.0, 0.0, 0.0)
        return OneUpdate(
            float(np.min(kept.moved_by_scaling())),
            float(np.min(kept.moved_by_optimizer())),
            float(np.min(kept.launched_over_lists())),
            float(np.min(kept.launched_by_optimizer())),
        )


class _Rank:
    """One rank that never waits for another one, at many points."""

    def __init__(self, prices: Prices, seconds: Floats) -> None:
        self._prices, self._seconds = prices, seconds
        self._clock = prices.first.copy()
        self._free: dict[int, Floats] = {}
        self._done: dict[int, Floats] = {}
        self._before: list[Floats] = []

    def play(self, segment: Sequence[Event], where: Bools | None = None) -> None:
        """Go on by a micro-step; with ``where``, at those points alone."""
        self._before = self._state()
        clock, free, kept = self._clock, dict(self._free), dict(self._done)
        for event in segment:
            if isinstance(event, int):
                self._clock = self._clock + self._seconds[event]
            elif isinstance(event, Asks):
                self._start(event)
            else:
                self._wait(event)
        if where is None:
            return
        nothing = np.zeros_like(clock)
        self._clock = np.where(where, self._clock, clock)
        for now, old in ((self._free, free), (self._done, kept)):
            for key, instant in now.items():
                now[key] = np.where(where, instant, old.get(key, nothing))

    def _state(self) -> list[Floats]:
        """Instants on which all later ones depend; what is over by now is as if over now."""
        later = (*self._free.values(), *self._done.values())
        return [self._clock, *(np.maximum(self._clock, instant) for instant in later)]

    def repeat(self, times: Floats) -> None:
        """Go on by more micro-steps like the last one; see the proof above."""
        now = self._state()
        if len(now) != len(self._before):
            return
        moved = [after - before for after, before in zip(now, self._before, strict=True)]
        by = times * np.min(moved, axis=0)
        self._clock = self._clock + by
        self._free = {stream: free + by for stream, free in self._free.items()}
        self._done = {tag: done + by for tag, done in self._done.items()}

    def _start(self, asks: Asks) -> None:
        enter = self._clock + asks.wait
        if asks.stream in self._free:
            enter = np.maximum(enter, self._free[asks.stream])
        for tag in asks.after:
            if tag in self._done:
                enter = np.maximum(enter, self._done[tag])
        end = enter + self._prices.message + self._prices.collective(asks)
        self._free[asks.stream] = end
        if asks.tag is None:
            self._clock = np.maximum(self._clock, end)
        else:
            self._done[asks.tag] = end

    def _wait(self, tags: Sequence[int]) -> None:
        for tag in tags:
            if tag in self._done:
                self._clock = np.maximum(self._clock, self._done.pop(tag))

    def end(self) -> Floats:
        """When all of it is done [s]."""
        found: Floats = np.max(self._state(), axis=0)
        return found
