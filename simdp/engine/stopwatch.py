"""Stopwatch: step times of scenarios that differ little from one of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from simdp.cluster.stragglers import Straggler
from simdp.cluster.stragglers.degraded_link import DegradedLink
from simdp.engine.common import common_to
from simdp.engine.compute import Times
from simdp.engine.heard import Heard
from simdp.engine.simulate import play
from simdp.engine.slowdown import Slowdown
from simdp.results.metrics import steady_step_time, times
from simdp.results.trace import StepEnds, TraceBuilder
from simdp.scenario import Scenario
from simdp.scenario.wiring import wiring_of
from simdp.workload import Workload

MICRO_STEPS = (3, 4)
"""Of so many micro-steps the last is like all that would follow, if the first scenario's is."""

WORTH_IT = 12
"""Micro-steps of a step from which on it pays to play `MICRO_STEPS` in their place."""

ALIKE = 1e-9
"""By which a step may differ from what a few of its micro-steps say, relatively: rounding."""

NETWORK = {"link": None, "inter_node": None}
"""What the cost of collectives knows of a cluster."""

CHARGED_ANEW = {
    "hook": 0.0,
    "message": 0.0,
    "message_per_rank": 0.0,
    "compute_slowdown": 0.0,
    "collective_slowdown": 0.0,
}
"""Overheads that a script heard once is charged again with."""


class Stopwatch:
    """Times steps; what other scenarios have in common with the first is not worked out again.

    Parameters
    ----------
    scenario : Scenario
        The first, without a sweep and without numerics.
    heard : Heard, optional
        Its script, where `simdp.engine.simulate.times_alone` has played it, with the metrics that
        this found. Without them it is played here.
    metrics : mapping, optional
        With ``heard``.

    Attributes
    ----------
    metrics : dict
        Of the first scenario, those of `simdp.results.metrics.times`.
    repeats : bool
        Whether others that differ in times alone cost next to nothing.
    """

    def __init__(
        self,
        scenario: Scenario,
        heard: Heard | None = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        self.scenario, self._heard = scenario, heard or Heard()
        foreseen: Collection[str] = ()
        if heard is not None and metrics is not None:
            self.metrics, self._times = dict(metrics), common_to(scenario).times
        else:
            trace = TraceBuilder()
            run = play(scenario, trace, listen=self._heard.listen).run
            samples = [record.samples for record in run.numbers.records]
            self.metrics = times(trace.build(), run.world_size, len(samples), samples)
            self._times, foreseen = run.times, run.program.facts.foreseen
        self._foresees = bool(foreseen)
        self.repeats = (
            scenario.collectives.all_timed
            and scenario.strategy.player == "together"
            and "collectives" not in foreseen
            and self._heard.is_timed
            and not getattr(scenario.strategy, "backup_ranks", 0)
            and not Slowdown(scenario.cluster, scenario.seed).has_stops
            and not any(_changes_links(one) for one in scenario.cluster.stragglers)
        )
        if self.repeats:
            self._heard.forget_setup()

    def step_times(self, others: Sequence[Scenario]) -> list[float]:
        """Simulated time of a steady step of each of some scenarios, but for rounding [s]."""
        charged = [other for other in others if self._differs_in_times(other)]
        found = dict[int, float]()
        if charged:
            ends = self._heard.step_ends(self.scenario, charged)
            found = {id(one): steady_step_time(ends[:, i].T) for i, one in enumerate(charged)}
        return [found[id(one)] if id(one) in found else self._played(one) for one in others]

    def _played(self, other: Scenario) -> float:
        known = self._times if self._computes_alike(other) else None
        if self._is_periodic and other.workload is self.scenario.workload:
            return self._continued(other, known)
        return self._of_steps(other, known)

    @cached_property
    def _few(self) -> list[Workload]:
        """The workload with a few of its micro-steps, if it has many that are alike."""
        workload = self.scenario.workload
        accumulated = workload.grad_accum
        if not isinstance(accumulated, int) or accumulated < WORTH_IT:
            return []
        if workload.global_batch is not None or self.scenario.numerics:
            return []
        return [workload.model_copy(update={"grad_accum": few}) for few in MICRO_STEPS]

    @cached_property
    def _is_periodic(self) -> bool:
        """Whether the first scenario's step is one that a few of its micro-steps tell."""
        if not self._few:
            return False
        step = self.metrics["step_time_s"]
        return bool(abs(self._continued(self.scenario, self._times) - step) <= ALIKE * step)

    def _continued(self, other: Scenario, known: Times | None) -> float:
        """Step time of as many micro-steps as there are, by that of a few [s]."""
        shorter = [other.model_copy(update={"workload": one}) for one in self._few]
        before, after = (self._of_steps(one, known) for one in shorter)
        more = self.scenario.workload.grad_accum
        assert isinstance(more, int)
        return after + (more - MICRO_STEPS[-1]) * (after - before)

    def _of_steps(self, other: Scenario, known: Times | None) -> float:
        ends = StepEnds(other.cluster.world_size)
        play(other, TraceBuilder(keep=False, ends=ends), times=known, listen=iter)
        return steady_step_time(ends.ends())

    def _computes_alike(self, other: Scenario) -> bool:
        """Whether the other one computes the same on the same devices."""
        a, b = self.scenario.cluster, other.cluster
        return self.scenario.workload is other.workload and all(
            getattr(a, key) == getattr(b, key)
            for key in ("world_size", "local_size", "ranks_per_device", "device")
        )

    def _differs_in_times(self, other: Scenario) -> bool:
        """Whether the other one says what the first one did, and only charges it otherwise."""
        a, b = self.scenario, other
        if not self.repeats or a.workload is not b.workload or not b.collectives.all_timed:
            return False
        same = {"cluster": None, "collectives": None, "workload": None}
        if a.model_copy(update=same) != b.model_copy(update=same):
            return False
        cost = {"cost": None}
        if a.collectives.model_copy(update=cost) != b.collectives.model_copy(update=cost):
            return False
        if a.cluster is b.cluster:
            return True
        before, after = a.cluster.overheads, b.cluster.overheads
        if before.hook != after.hook and (self._foresees or not before.hook):
            return False
        beside: dict[str, Any] = {**NETWORK, "stragglers": [], "failures": [], "overheads": None}
        if a.cluster.model_copy(update=beside) != b.cluster.model_copy(update=beside):
            return False
        if before.model_copy(update=CHARGED_ANEW) != after.model_copy(update=CHARGED_ANEW):
            return False
        if wiring_of(b.cluster).inter_bandwidth != wiring_of(a.cluster).inter_bandwidth:
            return False  # a strategy may read this
        stragglers = [*a.cluster.stragglers, *b.cluster.stragglers]
        alike = a.cluster.stragglers == b.cluster.stragglers
        return alike or all(one.by_factors for one in stragglers)


def _changes_links(straggler: Straggler) -> bool:
    """Whether a collective takes longer in some steps than in others."""
    return isinstance(straggler, DegradedLink) and straggler.comes_and_goes()
