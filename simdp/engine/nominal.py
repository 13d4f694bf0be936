"""NominalTimes: when gradients are ready and what an all_reduce takes, if nothing interferes."""

from __future__ import annotations

import numpy as np

from simdp.engine.compute import Times
from simdp.engine.launcher import Launcher
from simdp.engine.samples import Samples
from simdp.steps.facts import Facts
from simdp.workload.sampling import StepBatches


class NominalTimes:
    """What a few strategies sort gradients by; see `simdp.steps.facts.Nominal`.

    Parameters
    ----------
    times : Times
        How long compute takes.
    samples : Samples
        The data.
    facts : Facts
        Of the run.
    launcher : Launcher
        Knows its collectives.
    """

    def __init__(self, times: Times, samples: Samples, facts: Facts, launcher: Launcher) -> None:
        self._times, self._samples, self._facts = times, samples, facts
        self._launcher = launcher

    def all_reduce_seconds(self, nbytes: float) -> float:
        """How long an all_reduce takes that every rank enters at once [s]."""
        return self._launcher.predicted("all_reduce", nbytes)

    def ready_times(self, batches: StepBatches, micro: int) -> list[float]:
        """When gradients become ready, from the start of backward, on the slowest device [s]."""
        parts, facts, hook = batches.micro[micro], self._facts, self._facts.overheads.hook
        shapes, graph = self._samples.looked_at(parts), facts.graph

        def slowest(activity: str) -> list[float]:
            seconds = self._times.seconds(activity, parts.sizes, *shapes).seconds
            found: list[float] = seconds.max(axis=1).tolist()
            return found

        calls, each = range(len(graph.calls)), slowest("backward")
        again = np.array(slowest("forward") if facts.recomputed else each)
        tails = slowest("tail") if facts.tails else [0.0] * len(each)
        clock, found = each[-1] if len(each) > len(calls) else 0.0, list[float]()
        for number in reversed(calls):
            clock += float(again[list(facts.recomputed.get(number, ()))].sum())
            clock += each[number]
            for _ in graph.ready_at[number]:
                clock += hook
                found.append(clock)
            clock += tails[number]
        return found
