"""Maintenance: nodes that are taken out by plan, some at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from simdp.cluster.failures.base import Event, Failures
from simdp.spec import Bool, Int, PositiveSeconds, problem
from simdp.units import format_quantity


class Maintenance(Failures):
    """``{kind: maintenance, every: 1 week, duration: 2 h, nodes: 4}``: nodes in turn, by plan.

    Attributes
    ----------
    every : float
        From the beginning of one to that of the next; the first comes as late [s].
    duration : float
        For which its nodes are away [s].
    nodes : int or None
        How many at a time, the next ones each time; None means all of them.
    announced : bool
        Whether the job is told, so that it can set the nodes free (``drain``); else they fail.
    """

    kind: Literal["maintenance"] = "maintenance"
    every: PositiveSeconds
    duration: PositiveSeconds
    nodes: Int | None = Field(None, ge=1, le=2**20)
    announced: Bool = True

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
    ) -> Iterator[Event]:
        size = min(self.nodes or num_nodes, num_nodes)
        for number in count(1):
            first = (number - 1) * size
            nodes = tuple(sorted(node % num_nodes for node in range(first, first + size)))
            effect: Literal["drain", "fail"] = "drain" if self.announced else "fail"
            yield Event(number * self.every, effect, self.called(), nodes, self.duration)
