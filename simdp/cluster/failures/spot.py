"""Spot instances: capacity that is taken away and given back, often several nodes at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, PrivateAttr, ValidationInfo, model_validator

from simdp.cluster.failures.base import Effect, Event, Failures
from simdp.cluster.failures.hazard import BLOCK
from simdp.cluster.failures.tables import at, lines_of, numbers
from simdp.cluster.stragglers.base import rounded
from simdp.spec import Bool, Float, PositiveSeconds, problem

Change = tuple[float, Effect, list[int]]
"""When, what, and which nodes."""


class Spot(Failures):
    """``{kind: spot, lifetime: 2.4 h, comeback: 1.1 h}``: nodes taken away and given back.

    Either by a trace of how many are alive, or at random: each node lives for ``lifetime`` on
    average and comes back after ``comeback``, both exponential, and the job begins with all.

    Attributes
    ----------
    path : str or None
        A CSV file, relative to the scenario, with the columns ``time_s`` and ``alive``, whose last
        line says when it ends. Of lines of one instant the last one counts, as public traces have
        a line before and a line after each change. Which nodes go is drawn; those that went first
        come back first. More than the cluster has nodes are as good as all.
    repeat : bool
        Whether the trace begins again where it ends; else the last count stays.
    start : str
        Where in the trace a run begins: at its ``beginning``, or at a ``random`` instant.
    lifetime, comeback : float or None
        In place of a trace, the mean times of a node [s].
    group : float
        How many nodes are taken at once, on average (geometric), where so many are there.
    """

    kind: Literal["spot"] = "spot"
    path: str | None = None
    repeat: Bool = True
    start: Literal["beginning", "random"] = "beginning"
    lifetime: PositiveSeconds | None = None
    comeback: PositiveSeconds | None = None
    group: Float = Field(1.0, ge=1, le=1e6)

    _counts: tuple[tuple[float, int], ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _read(self, info: ValidationInfo) -> Spot:
        """Read the trace; its path starts from ``base`` of the validation's context."""
        times = (self.lifetime, self.comeback)
        if self.path is None:
            if None in times:
                raise problem(
                    "give either path, a trace of how many are alive, or lifetime and comeback."
                )
            if not self.repeat or self.start != "beginning":
                raise problem("repeat and start are of a trace; leave them out, or give path.")
            return self
        if times != (None, None) or self.group != 1:
            raise problem(
                "lifetime, comeback and group are not used with path; leave them out, or it."
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
    ) -> Iterator[Event]:
        changes = self._traced if self._counts else self._by_chance
        for time, effect, nodes in changes(num_nodes, random):
            yield Event(time, effect, self.called(), tuple(sorted(nodes)), 0.0)

    def _traced(self, num_nodes: int, random: np.random.Generator) -> Iterator[Change]:
        """Follow the trace."""
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
        """When the trace says how many of the nodes are alive, from the beginning of a run on."""
        counts = [(time, min(alive, num_nodes)) for time, alive in self._counts]
        period = counts[-1][0]
        begin = random.random() * period if self.start == "random" else 0.0
        if self.repeat:
            counts.pop()
        yield 0.0, [alive for time, alive in counts if time <= begin][-1]
        if len({alive for _, alive in counts}) == 1:
            return  # else it would be played for ever, and nothing would happen
        for number in count() if self.repeat else [0]:
            for time, alive in counts:
                instant = number * period + time - begin
                if instant > 0:
                    yield instant, alive

    def _by_chance(self, num_nodes: int, random: np.random.Generator) -> Iterator[Change]:
        """Draw lives and comebacks, whose rates follow from how many are alive and away.

        A group is cut where fewer are alive, and groups come more often for it, so that each node
        lives for `lifetime` on average.
        """
        assert self.lifetime is not None
        assert self.comeback is not None
        odds = np.cumprod(np.full(num_nodes, 1 - 1 / self.group))  # that a group is larger than i
        mean_group = np.cumsum([1.0, *odds[:-1]]).tolist()  # where i + 1 are alive
        alive, away, now = list(range(num_nodes)), list[int](), 0.0
        while True:
            gaps = rounded(random.standard_exponential(BLOCK)).tolist()
            shares, sizes = random.random(BLOCK).tolist(), random.geometric(1 / self.group, BLOCK)
            for gap, share, size in zip(gaps, shares, sizes.tolist(), strict=True):
                num = len(alive)
                leaving = num / self.lifetime / mean_group[num - 1] if num else 0.0
                both = leaving + len(away) / self.comeback
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
    """Take any of some nodes out of their list."""
    gone = list[int]()
    for share in random.random(num).tolist():
        place = int(share * len(nodes))
        nodes[place], nodes[-1] = nodes[-1], nodes[place]
        gone.append(nodes.pop())
    return gone


def _counts(path: Path) -> tuple[tuple[float, int], ...]:
    """Read how many are alive from which time on [s], the first at 0."""
    lines = lines_of(path, ["time_s", "alive"])
    times, alive = (numbers(path, lines, column) for column in ("time_s", "alive"))
    for line, before, after in zip(lines[1:], times, times[1:], strict=False):
        if after < before:
            told = f"{after:.12g} s is before {before:.12g} s of the line before"
            raise at(path, line, f"{told}; put lines in rising time.")
    for line, number in zip(lines, alive, strict=True):
        if number % 1:
            raise at(path, line, f"alive {number:.12g} is not a whole number.")
    found = {time - times[0]: int(number) for time, number in zip(times, alive, strict=True)}
    return tuple(found.items())
