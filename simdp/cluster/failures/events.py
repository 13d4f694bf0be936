"""Failures at given times: maintenance windows, spot preemptions, recorded traces."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from simdp.cluster.failures import Effect, FailureEvent, Failures
from simdp.cluster.failures.rates import BLOCK, at, lines_of, number, numbers
from simdp.cluster.stragglers import rounded
from simdp.errors import unknown_name
from simdp.spec import Bool, Float, Int, PositiveSeconds, problem
from simdp.tables import TableLine
from simdp.units import format_quantity


class Maintenance(Failures):
    """``{kind: maintenance, every: 1 week, duration: 2 h, nodes: 4}``: planned, by turns."""

    kind: Literal["maintenance"] = "maintenance"
    every: PositiveSeconds
    """Time between the beginnings of windows, and before the first [s]."""
    duration: PositiveSeconds
    """Length of a window, in which its nodes are unavailable [s]."""
    nodes: Int | None = Field(None, ge=1, le=2**20)
    """Number of nodes per window, the next ones each time; None means all of them."""
    announced: Bool = True
    """Whether the job gets notice, to vacate the nodes (``drain``); else they fail."""

    @model_validator(mode="after")
    def _ends_before_the_next(self) -> Maintenance:
        if self.duration >= self.every:
            duration, every = (format_quantity(t, "time") for t in (self.duration, self.every))
            raise problem(
                f"duration {duration} is not over when the next one begins after {every}; make it "
                "shorter."
            )
        return self

    def problem_with(self, num_nodes: int) -> str | None:
        if self.nodes is not None and self.nodes > num_nodes:
            return (
                f"nodes: {self.nodes} at a time are more than the {num_nodes} of the cluster; use "
                f"{num_nodes} or fewer."
            )
        return None

    def job_rate(self, num_nodes: int, devices_per_node: int) -> float | None:
        return 0.0 if self.announced else 1 / self.every

    def events(
        self, num_nodes: int, devices_per_node: int, random: np.random.Generator
    ) -> Iterator[FailureEvent]:
        size = min(self.nodes or num_nodes, num_nodes)
        for window in count(1):
            first = (window - 1) * size
            nodes = tuple(sorted(node % num_nodes for node in range(first, first + size)))
            effect: Literal["drain", "fail"] = "drain" if self.announced else "fail"
            yield FailureEvent(window * self.every, effect, self.called(), nodes, self.duration)


Change = tuple[float, Effect, list[int]]
"""Instant, effect, and nodes."""


class Spot(Failures):
    """``{kind: spot, lifetime: 2.4 h, mean_downtime: 1.1 h}``: nodes removed and returned.

    Either by a trace of the number of nodes alive, or at random: each node lives for ``lifetime``
    on average and returns after ``mean_downtime``, both exponential; the job begins with all nodes.
    """

    kind: Literal["spot"] = "spot"
    path: str | None = None
    """A CSV file, relative to the scenario, with the columns ``time_s`` and ``alive``; its last
    line marks its end. Of several lines of one instant the last one counts, as public traces have a
    line before and one after each change. The nodes that leave are drawn; the first to leave return
    first. Numbers above the cluster's nodes count as all nodes."""
    repeat: Bool = True
    """Whether the trace repeats at its end; else the last count stays."""
    start: Literal["beginning", "random"] = "beginning"
    """Where in the trace a run begins: at its ``beginning``, or at a ``random`` instant."""
    lifetime: PositiveSeconds | None = None
    """Instead of a trace, the mean times of a node [s]."""
    mean_downtime: PositiveSeconds | None = None
    """Instead of a trace, the mean times of a node [s]."""
    group: Float = Field(1.0, ge=1, le=1e6)
    """Mean number of nodes removed at once (geometric), limited by the nodes alive."""

    _counts: tuple[tuple[float, int], ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _read(self, info: ValidationInfo) -> Spot:
        """Read the trace; its path starts from ``base`` of the validation's context."""
        times = (self.lifetime, self.mean_downtime)
        if self.path is None:
            if None in times:
                raise problem(
                    "give either path, a trace of how many are alive, or lifetime and "
                    "mean_downtime."
                )
            if not self.repeat or self.start != "beginning":
                raise problem("repeat and start need a trace; leave them out, or give path.")
            return self
        if times != (None, None) or self.group != 1:
            raise problem(
                "lifetime, mean_downtime and group are not used with path; leave them out, or it."
            )
        if self.start == "random" and not self.repeat:
            raise problem("start: random needs a trace that goes on; write repeat: true.")
        if not self._counts:
            self._counts = _counts(Path((info.context or {}).get("base", "")) / self.path)
        if self.repeat and len(self._counts) == 1:
            raise problem(f"path: {self.path} has one instant, which never ends; add when it does.")
        return self

    def events(
        self, num_nodes: int, devices_per_node: int, random: np.random.Generator
    ) -> Iterator[FailureEvent]:
        changes = self._traced if self._counts else self._by_chance
        for time, effect, nodes in changes(num_nodes, random):
            yield FailureEvent(time, effect, self.called(), tuple(sorted(nodes)), 0.0)

    def _traced(self, num_nodes: int, random: np.random.Generator) -> Iterator[Change]:
        """Yield the changes of the trace."""
        alive, away = list(range(num_nodes)), deque[int]()
        for time, num in self._played(num_nodes, random):
            if num < len(alive):
                gone = _taken(alive, len(alive) - num, random)
                away += gone
                yield time, "leave", gone
            elif num > len(alive):
                back = [away.popleft() for _ in range(num - len(alive))]
                alive += back
                yield time, "join", back

    def _played(self, num_nodes: int, random: np.random.Generator) -> Iterator[tuple[float, int]]:
        """Yield availability from the trace, from the start of the run."""
        counts = [(time, min(alive, num_nodes)) for time, alive in self._counts]
        period = counts[-1][0]
        begin = random.random() * period if self.start == "random" else 0.0
        if self.repeat:
            counts.pop()
        yield 0.0, [alive for time, alive in counts if time <= begin][-1]
        if len({alive for _, alive in counts}) == 1:
            return  # else an endless loop without events
        for repetition in count() if self.repeat else [0]:
            for time, alive in counts:
                instant = repetition * period + time - begin
                if instant > 0:
                    yield instant, alive

    def _by_chance(self, num_nodes: int, random: np.random.Generator) -> Iterator[Change]:
        """Draw lifetimes and downtimes, with rates that depend on the numbers alive and away.

        A group is limited to the nodes alive, and groups are more frequent for it, so that each
        node lives for `lifetime` on average.
        """
        assert self.lifetime is not None
        assert self.mean_downtime is not None
        odds = np.cumprod(np.full(num_nodes, 1 - 1 / self.group))  # that a group is larger than i
        mean_group = np.cumsum([1.0, *odds[:-1]]).tolist()  # where i + 1 are alive
        alive, away, now = list(range(num_nodes)), list[int](), 0.0
        while True:
            gaps = rounded(random.standard_exponential(BLOCK)).tolist()
            shares, sizes = random.random(BLOCK).tolist(), random.geometric(1 / self.group, BLOCK)
            for gap, share, size in zip(gaps, shares, sizes.tolist(), strict=True):
                num = len(alive)
                leaving = num / self.lifetime / mean_group[num - 1] if num else 0.0
                both = leaving + len(away) / self.mean_downtime
                now += gap / both
                if share * both < leaving:
                    gone = _taken(alive, min(size, num), random)
                    away += gone
                    yield now, "leave", gone
                else:
                    back = _taken(away, 1, random)
                    alive += back
                    yield now, "join", back


def _taken(nodes: list[int], num: int, random: np.random.Generator) -> list[int]:
    """Remove random nodes from a list, and return them."""
    gone = list[int]()
    for share in random.random(num).tolist():
        place = int(share * len(nodes))
        nodes[place], nodes[-1] = nodes[-1], nodes[place]
        gone.append(nodes.pop())
    return gone


def _counts(path: Path) -> tuple[tuple[float, int], ...]:
    """Read the number of nodes alive by time [s], the first at 0."""
    lines = lines_of(path, ["time_s", "alive"])
    times, alive = (numbers(path, lines, column) for column in ("time_s", "alive"))
    for line, before, after in zip(lines[1:], times, times[1:], strict=False):
        if after < before:
            reason = f"{after:.12g} s is before {before:.12g} s of the line before"
            raise at(path, line, f"{reason}; put lines in rising time.")
    for line, nodes_alive in zip(lines, alive, strict=True):
        if nodes_alive % 1:
            raise at(path, line, f"alive {nodes_alive:.12g} is not a whole number.")
    counts = {
        time - times[0]: int(nodes_alive) for time, nodes_alive in zip(times, alive, strict=True)
    }
    return tuple(counts.items())


# Trace --------------------------------------------------------------------------------------------

MAX_NODE = 2**20 - 1
JOB = "job"
MAX_HITS = 2**20
"""Limit of the nodes affected by all events of a file, with repetitions."""


class TraceFailures(Failures):
    """``{kind: trace, path: events.csv}``: events from a file, the same in every run.

    The columns are ``time_s`` and ``node``: a number from 0, a range such as ``4-7``, or ``job``
    for all processes and no node. Optional columns are ``effect`` (``fail`` if empty or missing,
    ``hang``, ``leave``, ``join``, ``drain``), ``repair_s`` and ``cause``. Events are in ascending
    time, and none affects a node that is away. Nodes that a cluster lacks are ignored.
    """

    kind: Literal["trace"] = "trace"
    path: str
    """A CSV file, relative to the scenario; lines that begin with # are comments."""

    _events: tuple[FailureEvent, ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _read(self, info: ValidationInfo) -> TraceFailures:
        """Read the file; its path starts from ``base`` of the validation's context."""
        if not self._events:
            path = Path((info.context or {}).get("base", "")) / self.path
            lines = lines_of(path, ["time_s", "node"], ["effect", "repair_s", "cause"])
            events = (_event(path, line, self.called()) for line in lines)
            self._events = tuple(_apart(path, lines, events))
        return self

    def problem_with(self, num_nodes: int) -> str | None:
        last = max((event.nodes[-1] for event in self._events if event.nodes), default=0)
        if last >= num_nodes:
            return (
                f"path: {self.path} has node {last}, which does not exist; nodes are "
                f"0 ... {num_nodes - 1}."
            )
        return None

    def events(
        self, num_nodes: int, devices_per_node: int, random: np.random.Generator
    ) -> Iterator[FailureEvent]:
        for event in self._events:
            nodes = tuple(node for node in event.nodes if node < num_nodes)
            if nodes or not event.nodes:
                yield event._replace(nodes=nodes)


def _event(path: Path, line: TableLine, cause: str) -> FailureEvent:
    cells = line.cells
    repair = number(path, line, "repair_s") if cells.get("repair_s") else 0.0
    known: tuple[Effect, ...] = get_args(Effect)
    given = cells.get("effect") or "fail"
    effect = next((name for name in known if name == given), None)
    if effect is None:
        raise at(path, line, unknown_name("effect", given, known))
    nodes = _nodes(path, line)
    if not nodes and effect not in ("fail", "hang"):
        raise at(path, line, f"the job cannot {effect}; name nodes, or write fail or hang.")
    if repair and (not nodes or effect in ("leave", "join")):
        why = f"nodes that {effect}" if nodes else "the job, which loses no node"
        raise at(path, line, f"repair_s is not used of {why}; leave it empty.")
    return FailureEvent(
        number(path, line, "time_s"), effect, cells.get("cause") or cause, nodes, repair
    )


def _nodes(path: Path, line: TableLine) -> tuple[int, ...]:
    cell = line.cells["node"]
    match = re.fullmatch(r"(\d{1,7})(?:\s*-\s*(\d{1,7}))?", cell, re.ASCII)
    if cell == JOB:
        return ()
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise at(path, line, f"node {cell!r} is not a node; write a number, a range 4-7, or job.")
    if int(match[2] or match[1]) > MAX_NODE:
        raise at(path, line, f"node {cell} is out of range; nodes end at {MAX_NODE}.")
    return tuple(range(int(match[1]), int(match[2] or match[1]) + 1))


class _Last(NamedTuple):
    """Last event of a node: instant, line, and end of its absence."""

    time: float
    line: int
    until: float


_NEVER = _Last(-1.0, 0, 0.0)


def _apart(
    path: Path, lines: list[TableLine], events: Iterable[FailureEvent]
) -> Iterator[FailureEvent]:
    """Yield events, and reject those that go back in time or affect a node that is away."""
    last, before, hits = dict[int, _Last](), lines[0], 0
    for line, event in zip(lines, events, strict=True):
        hits += len(event.nodes)
        if hits > MAX_HITS:
            reason = (
                f"the events hit more than {MAX_HITS} nodes in all; give fewer, or smaller ranges."
            )
            raise at(path, line, reason)
        if event.time < number(path, before, "time_s"):
            reason = f"is before {before.cells['time_s']} s of line {before.number}"
            raise at(path, line, f"{event.time:.12g} s {reason}; put events in rising time.")
        before = line
        gone = float("inf") if event.effect == "leave" else event.time + event.repair
        now = _Last(event.time, line.number, gone)
        for node in event.nodes:
            wrong = _clash(node, event, last.get(node, _NEVER))
            if wrong:
                raise at(path, line, wrong)
            last[node] = now
        yield event


def _clash(node: int, event: FailureEvent, known: _Last) -> str | None:
    """Explain why an event cannot affect a node after its last event."""
    has_left, joins = known.until == float("inf"), event.effect == "join"
    hit = f"node {node} is hit at {event.time:.12g} s, but it"
    if event.time == known.time:
        return f"{hit} is hit then by line {known.line} too; leave one of them out."
    if joins and not has_left:
        return f"node {node} joins, but it has not left; let it leave before."
    if has_left and not joins:
        return f"{hit} has left by line {known.line}; let it join before."
    if event.time < known.until and not joins:
        away = f"is away until {known.until:.12g} s by line {known.line}"
        return f"{hit} {away}; shorten its repair_s."
    return None
