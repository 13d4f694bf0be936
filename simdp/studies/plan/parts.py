"""Parts: what points of a space share, each worked out once: clusters, and what ranks do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simdp.arrays import Floats
from simdp.cluster.device import Device
from simdp.engine.compute import COMPUTE, Times
from simdp.engine.compute.roofline import Roofline
from simdp.engine.slowdown import Slowdown
from simdp.results.money import Rates
from simdp.scenario import Scenario
from simdp.studies.plan.networks import Network

ACTIVITIES = "forward", "backward", "tail"

SEEN_STEPS = 64
"""Of a longer run stragglers may do anything in the rest."""


def named(settings: dict[str, Any]) -> str:
    """Tell settings apart."""
    return repr(sorted(settings.items(), key=lambda item: item[0]))


@dataclass(eq=False)
class Place:
    """A cluster that points share.

    Attributes
    ----------
    scenario : Scenario
        One that has it.
    network : Network
        Its collectives.
    devices : list of Device
        Of its ranks, those that differ.
    factor : float
        The least by which stragglers multiply compute.
    rates : Rates
        What it costs and draws.
    """

    scenario: Scenario
    network: Network
    devices: list[Device]
    factor: float
    rates: Rates

    @classmethod
    def of(cls, scenario: Scenario) -> Place:
        """The cluster of a scenario."""
        cluster = scenario.cluster
        devices = list[Device]()
        for device in cluster.device if isinstance(cluster.device, list) else [cluster.device]:
            if device not in devices:
                devices.append(device)
        return cls(scenario, Network(scenario), devices, _factor(scenario), cluster.rates())

    @property
    def memory(self) -> float:
        """Of the smallest device, for each of its ranks [bytes]."""
        return min(one.memory for one in self.devices) / self.scenario.cluster.ranks_per_device


def _factor(scenario: Scenario) -> float:
    """The least factor on compute of any rank in any step."""
    cluster, steps = scenario.cluster, scenario.workload.steps or SEEN_STEPS + 1
    if not cluster.stragglers:
        return 1.0
    if steps > SEEN_STEPS:
        return 0.0
    slowdown = Slowdown(cluster, scenario.seed)
    return min(float(slowdown.factors(step).min()) for step in range(steps))


@dataclass(eq=False)
class Recipe:
    """What each rank does, but for its batch.

    Attributes
    ----------
    scenario : Scenario
        One that does it.
    calls : dict of (str, int, str) to ndarray
        Seconds of each call, by activity, micro-batch and device.
    times : dict of tuple to Times
        By devices.
    """

    scenario: Scenario
    calls: dict[tuple[str, int, str], Floats] = field(default_factory=dict)

    times: dict[tuple[str, ...], Times] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Whether all ranks do the same in all steps, as the bounds take for granted."""
        workload, strategy = self.scenario.workload, self.scenario.strategy
        odd = workload.samples_per_rank or workload.rebalance or workload.packing
        if odd or strategy.player != "together" or strategy.one_process:
            return False
        if workload.lengths(self.scenario.seed, self.scenario.base):
            return False
        return not getattr(strategy, "backup_ranks", 0) and not hasattr(strategy, "local_steps")

    def seconds(self, microbatch: int, devices: Sequence[Device]) -> dict[str, Floats]:
        """Of each call on each device, by activity, shape `(num_calls, num_devices)` [s]."""
        missing = [one for one in devices if ("forward", microbatch, repr(one)) not in self.calls]
        if missing:
            workload = self.scenario.workload
            times = self._times_of(missing)
            batch, which = np.full(len(missing), microbatch), np.zeros(len(missing), dtype=np.int64)
            shapes = [workload.model.known_shapes()]
            for name in (*ACTIVITIES[:2], *(ACTIVITIES[2:] if any(times.tails) else ())):
                found = times.seconds(name, batch, shapes, which)
                for number, device in enumerate(missing):
                    column = found.seconds[:, found.column[number]]
                    self.calls[name, microbatch, repr(device)] = column
        return {
            name: np.array([self.calls[name, microbatch, repr(one)] for one in devices]).T
            for name in ACTIVITIES
            if (name, microbatch, repr(devices[0])) in self.calls
        }

    def _times_of(self, devices: list[Device]) -> Times:
        key = tuple(map(repr, devices))
        if key not in self.times:
            workload = self.scenario.workload
            self.times[key] = COMPUTE[workload.compute.kind](workload, Roofline(devices))
        return self.times[key]
