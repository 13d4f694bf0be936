"""Failures of nodes: the base class and the table of kinds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

import numpy as np

from simdp.family import Family
from simdp.spec import Spec, one_of

Effect = Literal["fail", "hang", "leave", "join", "drain"]


class FailureEvent(NamedTuple):
    """An event that affects nodes at an instant."""

    time: float  # job time, including restarts and waiting [s]
    # ``fail``; ``hang``, a failure detected late; ``leave`` and ``join``, of removed and returned
    # nodes; ``drain``, of nodes to be vacated
    effect: Effect
    cause: str  # for reports
    # affected nodes, ascending; empty if all processes of the job die but no node is lost
    nodes: tuple[int, ...]
    # time until these nodes can be used again [s]; 0 for ``leave``, which ends with ``join``
    repair: float


class Failures(Spec):
    """A process of events that affect nodes, or the job as a whole.

    Events follow the calendar, also while the job restarts or a node is repaired.
    """

    kind: str
    cause: str | None = None
    """Name of its events in reports; default: from the kind."""

    def called(self) -> str:
        """Return the name of its events in reports."""
        return self.cause or self.kind

    @abstractmethod
    def events(
        self, num_nodes: int, devices_per_node: int, random: np.random.Generator
    ) -> Iterator[FailureEvent]:
        """Draw the events of a run, in ascending time, lazily.

        Parameters
        ----------
        num_nodes, devices_per_node : int
            Nodes that can be affected, including spares.
        random : numpy.random.Generator
            The stream of this process and the run.

        Returns
        -------
        iterator of FailureEvent
            Endless, or until a trace ends.
        """

    def job_rate(self, num_nodes: int, devices_per_node: int) -> float | None:
        """Return the long-run failure rate of the job from this process [1/s]; None if unknown."""
        return None

    def problem_with(self, num_nodes: int) -> str | None:
        """Explain why it does not fit a cluster of ``num_nodes``, led by a key, or None.

        Nodes are those of a sweep's largest cluster; in a smaller one, only existing nodes are
        affected.
        """
        return None


FAILURES: Family[Failures] = Family(
    "failures",
    Failures,
    __name__,
    {
        "empirical": "rates:EmpiricalFailures",
        "exponential": "rates:Exponential",
        "maintenance": "events:Maintenance",
        "spot": "events:Spot",
        "trace": "events:TraceFailures",
        "weibull": "rates:Weibull",
    },
)
AnyFailures = Annotated[Failures, one_of("failure", FAILURES)]

__all__ = ["FAILURES", "AnyFailures", "FailureEvent", "Failures"]
