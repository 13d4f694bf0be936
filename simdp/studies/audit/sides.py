"""Runs a scenario and one device on the same samples, and compares every step.

The bound of a difference comes from a second run of the one device, whose first weights are changed
by up to one unit in the last place of the dtype that it computes in.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter

from simdp.arrays import Array
from simdp.cluster import Cluster
from simdp.engine.samples import BatchSamples
from simdp.engine.stepwise import Arrays, Nudge, StepNumbers, batches_of, follow, steps_of
from simdp.results.audit import SampleRow, TensorRow
from simdp.rng import stream
from simdp.scenario.root import Scenario
from simdp.strategies import AnyStrategy
from simdp.workload.precision import numpy_dtype
from simdp.workload.sampling import SampleParts, StepBatches
from simdp.workload.step_costs import forward_flops

SAFETY = 8.0  # rounding explains this many times the effect of a nudge
FLOOR = 16.0  # units in the last place that rounding always explains

STAGES = ("forward", "gradient", "update", "buffer")
"""What is compared, in order of cause; ``update``: the change of the weights since the start."""

LOW = ("float16", "bfloat16")

MAX_STEPS, LEAST_STEPS, MAX_FLOPS = 16, 4, 4e10
"""Steps that are compared: at most, at least, and FLOPs of them on one device."""

FAR = 64  # a step of another size, or the end of a period, is reached if it is among so many


# One device ---------------------------------------------------------------------------------------


def one_device(scenario: Scenario, num_samples: int) -> Scenario:
    """Return the counterpart on one device, with micro-batches of all samples of a step.

    Faults of any rank are injected there too.
    """
    workload = scenario.workload
    faults = {fault.step: fault.model_copy(update={"rank": 0}) for fault in workload.inject}
    changes: dict[str, Any] = {
        "microbatch": num_samples,
        "global_batch": None,
        "grad_accum": 1,
        "samples_per_rank": None,
        "rebalance": None,
        "gradient_noise": False,
        "unused": {},
        "inject": tuple(faults.values()),
    }
    if workload.sync_batchnorm:
        changes["sync_batchnorm"] = False
    device = scenario.cluster.device
    cluster = {"world_size": 1, "device": device[0] if isinstance(device, list) else device}
    return scenario.model_copy(
        update={
            "cluster": Cluster.model_validate(cluster),
            "workload": workload.model_copy(update=changes),
            "strategy": TypeAdapter(AnyStrategy).validate_python("single"),
            "neighbours": [],
            "target": None,
        }
    )


def joined(batches: StepBatches) -> StepBatches:
    """Return the samples of all ranks in a step as one micro-batch of one rank."""
    parts = [part for parts in batches.micro for part in parts if len(part)]
    order = np.concatenate(parts)
    whole = SampleParts(order, np.zeros(1, dtype=np.int64), np.array([len(order)]))
    return StepBatches([whole], np.array([[len(order)]]), batches.closes_epoch, batches.epoch)


def unit(scenario: Scenario) -> float:
    """Unit in the last place, relative to 1, of the lowest dtype of the compute."""
    dtypes: list[str | None] = [scenario.workload.dtype, scenario.workload.precision.low]
    dtypes += _names(scenario.strategy.precision_options)
    units = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
    return max(units.get(name) or float(np.finfo(numpy_dtype(name)).eps) for name in dtypes if name)


def _names(value: object) -> list[str]:
    """List the 16-bit dtypes in options."""
    if isinstance(value, Mapping):
        return [name for inner in value.values() for name in _names(inner)]
    if hasattr(value, "model_dump"):
        return _names(value.model_dump(mode="json"))
    return [value] if value in LOW else []


def nudge_by(eps: float, seed: int) -> Nudge:
    """Return a nudge that changes every weight by a share of up to ``eps``, at random."""

    def nudge(name: str, weight: Array) -> Array:
        share = stream(seed, "audit", name).uniform(-eps, eps, weight.shape)
        return (weight * (1.0 + share)).astype(weight.dtype)

    return nudge


def num_compared(scenario: Scenario, given: int | None) -> int:
    """Number of steps to compare.

    At least one of each size that comes early, one behind each fault, and a whole period of the
    strategy; more where a step needs few FLOPs.
    """
    n, workload, strategy = scenario.cluster.world_size, scenario.workload, scenario.strategy
    num_steps = workload.num_steps(n, scenario.base)
    if given is not None:
        return min(given, num_steps)
    shapes = workload.model.known_shapes()
    flops = 3 * forward_flops(workload.graph, shapes).total * workload.samples_per_step(n)
    affordable = min(int(MAX_FLOPS / max(flops, 1.0)), MAX_STEPS)
    faults = [fault.step + 1 for fault in workload.inject]
    period = strategy.first_alike + strategy.steps_together + 1
    wanted = [LEAST_STEPS, affordable, *(step for step in (*faults, period) if step <= FAR)]
    first: bytes | None = None
    for number, batches in enumerate(islice(batches_of(scenario), FAR), 1):
        first = first or batches.sizes.tobytes()
        if batches.sizes.tobytes() != first:
            wanted.append(number)
            break
    return min(max(wanted), num_steps)


# Comparing ----------------------------------------------------------------------------------------


@dataclass
class Differences:
    """Differences of a scenario from one device."""

    world_size: int
    """Ranks of the scenario."""
    steps: int = 0
    """Compared steps."""
    rows: list[TensorRow] = field(default_factory=list)
    """The first step of each value at which it differs by more than rounding, in order."""
    largest: dict[tuple[str, str], TensorRow] = field(default_factory=dict)
    """Of each stage and value the row whose size is largest relative to its bound."""
    whole: dict[str, TensorRow] = field(default_factory=dict)
    """Of each stage the largest difference of all values together."""
    replicas_differ: int | None = None
    """First step after which ranks have different weights."""
    diverged: int | None = None
    """First step whose loss is finite on neither side."""
    batch: int = 0
    """Samples of the first step."""
    items: tuple[int, int] = (0, 0)
    """Least and most items that a rank's loss averages in a step."""
    is_uneven: bool = False
    """Whether a mean over ranks and micro-steps is not the mean over items."""
    ledger: list[SampleRow] = field(default_factory=list)

    @property
    def first(self) -> TensorRow | None:
        """The first difference: of the first step, there the first stage, there the largest."""
        order = {stage: number for number, stage in enumerate(STAGES)}
        return min(self.rows, key=lambda row: (row.step, order[row.stage], -row.size), default=None)

    @property
    def worst(self) -> TensorRow | None:
        """The value whose difference is largest relative to its bound."""
        return max(self.largest.values(), key=lambda row: row.size / row.bound, default=None)

    @property
    def vanishes(self) -> bool:
        """Whether rounding explains all differences."""
        return not self.rows and self.replicas_differ is None


class Sides:
    """Both sides of a comparison, step by step."""

    def __init__(self, scenario: Scenario, num_steps: int) -> None:
        self.scenario, n = scenario, scenario.cluster.world_size
        self.found = Differences(n)
        batches = list(islice(batches_of(scenario), num_steps))
        self._look_at(batches)
        alone = one_device(scenario, max(int(batch.sizes.sum()) for batch in batches))
        whole = [joined(batch) for batch in batches]
        self.unit = unit(scenario)
        nudge = nudge_by(self.unit, scenario.seed)
        self._one = steps_of(alone, whole, scaled_by=n)
        self._nudged = steps_of(alone, whole, nudge, scaled_by=n)
        start = scenario.workload.initial_weights(scenario.seed, 0, scenario.base)
        self._start = {name: start[name].astype(np.float64) for name in start}
        self._bounds: dict[tuple[str, str], float] = {}
        self._seen: set[tuple[str, str]] = set()

    def _look_at(self, batches: list[StepBatches]) -> None:
        """Record the samples, and the numbers of items that losses average."""
        differences, samples = self.found, BatchSamples(self.scenario)
        count, low, high = self.scenario.workload.loss.count, None, 0
        for number, batch in enumerate(batches, 1):
            sizes = batch.sizes.astype(float)
            items = np.array(
                [[float(count(samples.target(part))) for part in parts] for parts in batch.micro]
            )
            equal = sizes / np.maximum(sizes.sum(axis=0), 1.0)
            fair = items * differences.world_size / (items.sum() or 1.0)
            differences.is_uneven = differences.is_uneven or not np.allclose(equal, fair, rtol=1e-9)
            per_rank = items.sum(axis=0)
            low = int(per_rank.min() if low is None else min(low, per_rank.min()))
            high = max(high, int(per_rank.max()))
            for rank in range(differences.world_size):
                mine = [parts[rank] for parts in batch.micro]
                listed = tuple(int(sample) for part in mine for sample in part)
                differences.ledger.append(
                    SampleRow(differences.world_size, rank, number, batch.epoch + 1, listed)
                )
        differences.items, differences.batch = (low or 0, high), int(batches[0].sizes.sum())

    def look(self, many: StepNumbers) -> None:
        """Compare a step of the scenario."""
        single, nudged, differences = next(self._one), next(self._nudged), self.found
        differences.steps = many.number
        if differences.diverged is not None:
            return
        if not many.replicas_identical and differences.replicas_differ is None:
            differences.replicas_differ = many.number
        finite = [side.loss is not None and np.isfinite(side.loss) for side in (many, single)]
        if not any(finite):
            differences.diverged = many.number
            return
        for stage in STAGES:
            self._compare(stage, many, single, nudged)

    def _compare(
        self, stage: str, many: StepNumbers, single: StepNumbers, nudged: StepNumbers
    ) -> None:
        averages = self.scenario.strategy.averages_parameters
        if stage == "gradient" and averages:  # they are each rank's own
            return
        differences = self.found
        values, reference, bent = (self._values(stage, side) for side in (many, single, nudged))
        names = [name for name in reference if name in values]
        apart = {name: _apart(values[name], reference[name]) for name in names}
        moved = {name: _apart(bent[name], reference[name]) for name in names}
        for name in names:
            key = (stage, name)
            self._bounds[key] = max(self._bounds.get(key, 0.0), moved[name].size)
        usual = [self._bounds[stage, name] for name in names]
        usual = [value for value in usual if np.isfinite(value)]
        typical = median(usual) if usual else 0.0

        def row(name: str, size: float, nudge: float) -> TensorRow:
            bound = SAFETY * max(nudge, typical) + FLOOR * self.unit
            return TensorRow(stage, name, many.number, (1, differences.world_size), size, bound)

        for name in names:
            key, here = (stage, name), row(name, apart[name].size, self._bounds[stage, name])
            known = differences.largest.get(key)
            if known is None or here.size / here.bound > known.size / known.bound:
                differences.largest[key] = here
            if here.size > here.bound and key not in self._seen:
                self._seen.add(key)
                differences.rows.append(here)
        if names:
            here = row("", Apart.of(apart.values()).size, Apart.of(moved.values()).size)
            if stage not in differences.whole or here.size > differences.whole[stage].size:
                differences.whole[stage] = here

    def _values(self, stage: str, side: StepNumbers) -> Arrays:
        match stage:
            case "forward":
                return {} if side.loss is None else {"loss": np.array(side.loss)}
            case "gradient":
                return side.gradients
            case "update":
                return {name: weight - self._start[name] for name, weight in side.weights.items()}
        return {name: kept for name, kept in side.buffers.items() if kept.dtype.kind == "f"}


class Apart(NamedTuple):
    """Norms of a difference, and of the reference."""

    difference: float
    reference: float

    @classmethod
    def of(cls, parts: Collection[Apart]) -> Apart:
        """Join the norms of several tensors."""
        return cls(*(float(np.linalg.norm(norms)) for norms in zip(*parts, strict=True)))

    @property
    def size(self) -> float:
        """The relative difference."""
        top, below = self
        if top == 0.0:
            return 0.0
        return top / below if below and np.isfinite(top) else float("inf")


def _apart(value: Array, reference: Array) -> Apart:
    """Norms in float64; values that are finite on neither side are equal."""
    value, reference = np.asarray(value, np.float64), np.asarray(reference, np.float64)
    both = ~np.isfinite(value) & ~np.isfinite(reference)
    difference = np.where((value == reference) | both, 0.0, value - reference)
    kept = np.where(both, 0.0, reference)
    return Apart(*(float(np.linalg.norm(array.ravel())) for array in (difference, kept)))


_KNOWN: deque[tuple[str, Differences]] = deque(maxlen=16)
"""The last comparisons, which points of a sweep share."""


def compare(scenario: Scenario, num_steps: int) -> Differences:
    """Run a scenario and one device on the same samples, and compare them step by step.

    Parameters
    ----------
    scenario : Scenario
        With numerics, several ranks and without a sweep.
    num_steps : int
        Number of steps.
    """
    key = json.dumps([scenario.resolved(), str(scenario.base.resolve()), num_steps])
    for known, differences in _KNOWN:
        if known == key:
            return differences
    with np.errstate(all="ignore"):
        sides = Sides(scenario, num_steps)
        follow(scenario, num_steps, sides.look)
    _KNOWN.append((key, sides.found))
    return sides.found


def epoch_samples(scenario: Scenario) -> Iterator[int]:
    """Yield the samples of all ranks in the first epoch, as often as ranks see them."""
    whole = scenario.workload.model_copy(update={"steps": None, "epochs": 1})
    for batches in batches_of(scenario.model_copy(update={"workload": whole})):
        for parts in batches.micro:
            for part in parts:
                yield from part.tolist()
