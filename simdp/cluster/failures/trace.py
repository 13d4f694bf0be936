"""Events from a file, as they happened or as somebody wants them to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
from pydantic import PrivateAttr, ValidationInfo, model_validator

from simdp.cluster.failures.base import Effect, Event, Failures
from simdp.cluster.failures.tables import at, lines_of, number
from simdp.errors import unknown_name
from simdp.tables import Line

MAX_NODE = 2**20 - 1
JOB = "job"
MAX_HITS = 2**20
"""Nodes that all events of a file hit together, each as often as it is hit."""


class Trace(Failures):
    """``{kind: trace, path: events.csv}``: events from a file, the same in every run.

    The columns are ``time_s`` and ``node``: a number from 0, a range such as ``4-7``, or ``job``
    for all processes and no node. There may be ``effect`` (``fail`` if it is empty or missing,
    ``hang``, ``leave``, ``join``, ``drain``), ``repair_s`` and ``cause``. Events come in rising
    time, and none hits a node that is away. Nodes that a cluster lacks are passed over.

    Attributes
    ----------
    path : str
        A CSV file, relative to the scenario; lines that begin with # are comments.
    """

    kind: Literal["trace"] = "trace"
    path: str

    _events: tuple[Event, ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _read(self, info: ValidationInfo) -> Trace:
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
    ) -> Iterator[Event]:
        for event in self._events:
            nodes = tuple(node for node in event.nodes if node < num_nodes)
            if nodes or not event.nodes:
                yield event._replace(nodes=nodes)


def _event(path: Path, line: Line, cause: str) -> Event:
    cells = line.cells
    repair = number(path, line, "repair_s") if cells.get("repair_s") else 0.0
    known: tuple[Effect, ...] = get_args(Effect)
    given = cells.get("effect") or "fail"
    effect = next((one for one in known if one == given), None)
    if effect is None:
        raise at(path, line, unknown_name("effect", given, known))
    nodes = _nodes(path, line)
    if not nodes and effect not in ("fail", "hang"):
        raise at(path, line, f"the job cannot {effect}; name nodes, or write fail or hang.")
    if repair and (not nodes or effect in ("leave", "join")):
        why = f"nodes that {effect}" if nodes else "the job, which loses no node"
        raise at(path, line, f"repair_s is not used of {why}; leave it empty.")
    return Event(number(path, line, "time_s"), effect, cells.get("cause") or cause, nodes, repair)


def _nodes(path: Path, line: Line) -> tuple[int, ...]:
    cell = line.cells["node"]
    match = re.fullmatch(r"(\d{1,7})(?:\s*-\s*(\d{1,7}))?", cell, re.ASCII)
    if cell == JOB:
        return ()
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise at(path, line, f"node {cell!r} is no node; write a number, a range 4-7, or job.")
    if int(match[2] or match[1]) > MAX_NODE:
        raise at(path, line, f"node {cell} is out of range; nodes end at {MAX_NODE}.")
    return tuple(range(int(match[1]), int(match[2] or match[1]) + 1))


class _Last(NamedTuple):
    """What happened last to a node: when, in which line, and until when it is away."""

    time: float
    line: int
    until: float


_NEVER = _Last(-1.0, 0, 0.0)


def _apart(path: Path, lines: list[Line], events: Iterable[Event]) -> Iterator[Event]:
    """Pass on events, but none that goes back in time or hits a node that is away."""
    last, before, hits = dict[int, _Last](), lines[0], 0
    for line, event in zip(lines, events, strict=True):
        hits += len(event.nodes)
        if hits > MAX_HITS:
            told = (
                f"the events hit more than {MAX_HITS} nodes in all; give fewer, or smaller ranges."
            )
            raise at(path, line, told)
        if event.time < number(path, before, "time_s"):
            told = f"is before {before.cells['time_s']} s of line {before.number}"
            raise at(path, line, f"{event.time:.12g} s {told}; put events in rising time.")
        before = line
        gone = float("inf") if event.effect == "leave" else event.time + event.repair
        now = _Last(event.time, line.number, gone)
        for node in event.nodes:
            known = last.get(node, _NEVER)
            wrong = _clash(node, event, known)
            if wrong:
                raise at(path, line, wrong)
            last[node] = now
        yield event


def _clash(node: int, event: Event, known: _Last) -> str | None:
    """Say why an event cannot hit a node, to which something else happened last."""
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
