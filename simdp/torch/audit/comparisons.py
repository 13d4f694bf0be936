"""Differences between runs, step by step, against what rounding explains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats
from simdp.results.audit import TensorRow
from simdp.torch.audit.records import BackwardRecord, Place, RankRecord, RunRecord, StepRecord
from simdp.torch.audit.sketches import norm

STAGES = ("gradient", "learning rate", "weights")
"""In the order of cause."""

ULPS = 64
"""Units in the last place that rounding explains at least, in the 2-norm of a tensor."""

NUDGES = 100
"""Times the difference of a run whose weights were moved by one unit in the last place."""

COARSE = 4
"""Times the largest difference of a run in float32, of one under autocast."""

CHAOTIC = 0.125
"""Difference by rounding from which a tensor is not compared; of the median tensor: none is, from
that step on."""

VANISHING = 2.3e-16
"""Part of a weight's norm below which its gradient is zero: a unit in the last place of float64."""

SMALLEST = 1e-2
"""Part of the largest tensor's norm below which a tensor is compared with that norm."""


class RunView:
    """A run, aligned by the steps of rank 0."""

    def __init__(
        self, record: RunRecord, skip: int = 0, skipped: Mapping[int, int] | None = None
    ) -> None:
        self.record, self.skip, self._skipped = record, skip, skipped or {}
        self.world_size = record.world_size

    @property
    def first(self) -> RankRecord:
        """Rank 0."""
        return self.record.ranks[0]

    @cached_property
    def keys(self) -> list[tuple[int, int]]:
        """Optimizer and number of each step, in the order of rank 0."""
        return [
            (step.optimizer, step.number + self._skipped.get(step.optimizer, 0))
            for step in self.first.steps
        ]

    @cached_property
    def places(self) -> dict[tuple[int, int], int]:
        """Places of steps in the list of those of rank 0, by key."""
        return {key: place for place, key in enumerate(self.keys)}

    def step_of(self, place: int) -> int:
        """Return the number, from 1, of a step among all of the script."""
        return self.first.steps[place].at + self.skip + 1

    @cached_property
    def count(self) -> int:
        """Steps of the script."""
        return max((step.at + self.skip + 1 for step in self.first.steps), default=0)

    def global_step(self, rank: RankRecord, own: int) -> int | None:
        """Return the step of rank 0, from 0, during which a rank's own step happens.

        Ranks that skip steps, as under Join, are aligned by their number of collectives.
        """
        steps = _of_first_optimizer(rank)
        leading = _of_first_optimizer(self.first)
        if len(steps) == len(leading) or rank is self.first:
            return own
        if own >= len(steps):
            return None
        calls = steps[own].calls
        return next((place for place, step in enumerate(leading) if step.calls >= calls), None)

    def backwards(self, step: int) -> list[list[tuple[int, BackwardRecord]]]:
        """Return the backward passes of a step, by rank, with their numbers."""
        return self._backwards.get(step, [[] for _ in self.record.ranks])

    @cached_property
    def _backwards(self) -> dict[int, list[list[tuple[int, BackwardRecord]]]]:
        by_step: dict[int, list[list[tuple[int, BackwardRecord]]]] = {}
        for place, rank in enumerate(self.record.ranks):
            if self._follows(rank):
                continue
            for number, backward in enumerate(rank.backwards):
                step = self.global_step(rank, backward.step)
                if step is not None and step < self.count - self.skip:
                    by_rank = by_step.setdefault(step + self.skip, [[] for _ in self.record.ranks])
                    by_rank[place].append((number, backward))
        return by_step

    def _follows(self, rank: RankRecord) -> bool:
        """Return whether a rank has the samples of another, and another part of the weights."""
        if rank.follows is None:
            return False
        passes = rank.backwards, self.record.ranks[rank.follows].backwards
        own, leading = ([backward.samples for backward in backwards] for backwards in passes)
        return own == leading

    def samples(self, step: int) -> Counter[int]:
        """Return how often each sample counts in a step."""
        return Counter(
            sample
            for passes in self.backwards(step)
            for _, backward in passes
            for sample in backward.samples
        )

    def micro_steps(self, step: int) -> list[int]:
        """Return the backward passes of each rank in a step."""
        return [len(passes) for passes in self.backwards(step)]

    def local(self, step: int, weights: dict[tuple[int, int], float] | None = None) -> Tensors:
        """Return the mean over ranks of the local gradients of a step, weighted if given.

        Ranks without a backward pass in the step, which have joined, do not count.
        """
        mean: Tensors = {}
        active = [passes for passes in self.backwards(step) if passes]
        for place, passes in enumerate(self.backwards(step)):
            for number, backward in passes:
                factor = 1.0 if weights is None else weights.get((place, number), 1.0)
                for name, local in backward.local.items():
                    part = local * (factor / len(active))
                    if name not in mean:
                        mean[name] = part
                    elif mean[name].shape == part.shape:  # else of a tensor of this rank alone
                        mean[name] = mean[name] + part
        return mean

    def whole(self, stage: str, place: int) -> Tensors:
        """Return the gradients or weights of a step of rank 0, with shards of all ranks added.

        Of an optimizer that averages gradients itself, the mean of those of the ranks.
        """
        step = self.first.steps[place]
        if stage == "gradient" and step.reduces:
            return self.local(step.at + self.skip)
        whole = {name: value for name, value in _of(step, stage).items() if value is not None}
        for rank in self.record.ranks[1:]:
            if place >= len(rank.steps):
                continue
            other = rank.steps[place]
            for name in other.shards:
                part = _of(other, stage).get(name)
                if part is not None and whole.get(name, part).shape == part.shape:
                    whole[name] = whole[name] + part if name in whole else part
        return whole


Tensors = dict[str, Floats]
"""Sketches by name."""


def _of(step: StepRecord, stage: str) -> dict[str, Floats | None]:
    return step.grads if stage == "gradient" else step.after


def _of_first_optimizer(rank: RankRecord) -> list[StepRecord]:
    return [step for step in rank.steps if step.optimizer == 0]


Contents = Mapping[str, tuple[int, tuple[int, ...]]]
"""Elements, and hashes of the rows, of parameters before training, by name."""


def places(views: Sequence[RunView]) -> dict[tuple[int, int, str], Place]:
    """Return the places of tensors that ranks do not share, by number of ranks, rank and name.

    Ranks may have experts of their own, under any names, or rows of a stack of them: what is equal
    to a tensor of the first view before training, or to rows of it, is the same tensor.
    """
    known: dict[str, tuple[int, tuple[int, ...]]] = {}
    own: dict[str, int] = {}  # ranks of tensors by whose names other ranks call other ones
    for number, rank in enumerate(views[0].record.ranks):
        contents = rank.contents.items()
        other = [name for name, content in contents if known.get(name, content) != content]
        modules = {name.rpartition(".")[0] for name in other}
        for name, content in rank.contents.items():
            if name.rpartition(".")[0] in modules:
                own[f"rank {number}: {name}"] = number
                known[f"rank {number}: {name}"] = content
            known.setdefault(name, content)
    placed = _places(views, known)
    if any(own.get(place.name, rank) != rank for (_, rank, _), place in placed.items()):
        return placed  # what a rank of the first view has, another one of more ranks has
    return _places(views, {name: known[name] for name in known if name not in own})


def _places(views: Sequence[RunView], known: Contents) -> dict[tuple[int, int, str], Place]:
    placed: dict[tuple[int, int, str], Place] = {}
    for view in views:
        held: set[tuple[str, int]] = set()
        for number, rank in enumerate(view.record.ranks):
            for name, (place, offset) in _spots(rank.contents, known).items():
                total, first = known[place][0], (place, offset) not in held
                held.add((place, offset))
                alone = number > 0 and place not in view.first.contents
                if place != name or rank.contents[name][0] != total or alone:
                    leads = first and number > 0
                    placed[view.world_size, number, name] = Place(place, offset, total, leads)
    return placed


def _spots(mine: Contents, known: Contents) -> dict[str, tuple[str, int]]:
    """Return the known name of each tensor of a rank, and its first element there.

    Tensors of one value, as biases of 0, are where the others of their module are.
    """
    by_content: dict[tuple[int, ...], list[tuple[str, int]]] = {}
    for name, (_, rows) in known.items():
        by_content.setdefault(rows, []).append((name, 0))
    spots: dict[str, tuple[str, int]] = {}
    modules: dict[str, tuple[str, int]] = {}
    for name, (size, rows) in mine.items():
        equal = by_content.get(rows) or [
            (place, start)
            for place, (_, whole) in known.items()
            if place.endswith(name) and place.removesuffix(name)[-2:] in ("", ": ")
            for start in range(len(whole) - len(rows) + 1)
            if whole[start : start + len(rows)] == rows
        ]
        if len(equal) == 1:
            place, start = equal[0]
            spots[name] = place, start * size // len(rows)
            parts = zip(name.split(".")[::-1], place.split(".")[::-1], strict=False)
            same = len(list(takewhile(lambda pair: pair[0] == pair[1], parts)))
            prefix, known_prefix = (path.rsplit(".", same)[0] for path in (name, place))
            if place.endswith(name):
                prefix = name.rpartition(".")[0]
                known_prefix = place.removesuffix(name) + prefix
            if (place, known[place][0]) != (name, size):
                modules[prefix] = known_prefix, start
    for name, (size, rows) in mine.items():
        own = [path for path in modules if f"{name.rpartition('.')[0]}.".startswith(f"{path}.")]
        prefix = max(own, key=len, default=name)
        known_prefix, start = modules.get(prefix, (name, 0))
        place = known_prefix + name.removeprefix(prefix)
        if known.get(place, (0, ()))[1][start : start + len(rows)] == rows:
            spots.setdefault(name, (place, start * size // len(rows)))
    return spots


class Difference(NamedTuple):
    """Differences of two runs."""

    rows: list[TensorRow]
    """All compared tensors with a difference above rounding, in the order of steps and stages."""
    size: float
    """Largest relative difference of a tensor, anywhere."""
    bound: float  # of the first row; else the largest
    sizes: dict[tuple[int, str, str], float]  # of all tensors, by step, stage and name
    compared: int = 0  # gradients

    @property
    def same(self) -> bool:
        """Whether rounding explains all differences."""
        return not self.rows

    @property
    def first(self) -> TensorRow | None:
        """The first tensor that differs."""
        return self.rows[0] if self.rows else None

    def of(self, row: TensorRow) -> float:
        """Return the size of the difference of the same tensor, stage and step; 0 without one."""
        return self.sizes.get((row.step, row.stage, row.name), 0.0)


def relative(tensors: Tensors, reference: Tensors) -> dict[str, float]:
    """Return the relative difference of each tensor in the 2-norm."""
    largest = max((norm(value) for value in reference.values()), default=0.0)
    sizes = {}
    for name in reference.keys() | tensors.keys():
        tensor, own = tensors.get(name), reference.get(name)
        if tensor is None or own is None or tensor.shape != own.shape:
            present = tensor if tensor is not None else own
            sizes[name] = 0.0 if present is None or not norm(present) else 1.0
            continue
        scale = max(norm(own), SMALLEST * largest)
        difference = norm(tensor - own)
        if not np.isfinite(difference):
            sizes[name] = 0.0 if np.array_equal(tensor, own, equal_nan=True) else float("inf")
        else:
            sizes[name] = difference / scale if scale else float(difference > 0)
    return sizes


class Rounding:
    """What rounding explains: the differences of a run whose weights and gradients were nudged.

    Parameters
    ----------
    base, nudged : RunView, optional
        The same run without and with it; none for the smallest bound.
    epsilon : float
        A unit in the last place.
    coarse : bool
        Whether the second run shows the rounding of a shorter data type. Then weights are not
        compared, since an adaptive optimizer enlarges small gradients.
    finer : Rounding, optional
        What rounding explains besides.
    """

    def __init__(
        self,
        base: RunView | None = None,
        nudged: RunView | None = None,
        epsilon: float = 1.2e-7,
        coarse: bool = False,
        finer: Rounding | None = None,
    ) -> None:
        self.smallest, self.coarse, self.finer = ULPS * epsilon, coarse, finer
        self._sizes: dict[tuple[tuple[int, int], str], tuple[dict[str, float], float]] = {}
        self.lost: int | None = None  # first step, from 1, of which a comparison shows nothing
        most = 0.0  # in all steps so far
        middle: dict[str, float] = {}
        self._chaotic: set[tuple[tuple[int, int], str]] = set()
        if base is None or nudged is None:
            return
        for key, place, nudged_place in _common_steps(base, nudged):
            for stage in ("gradient",) if coarse else ("gradient", "weights"):
                sizes = relative(nudged.whole(stage, nudged_place), base.whole(stage, place))
                # tensors share their rounding, and steps in short data types: one's may be small by
                # chance
                differences = list(sizes.values()) or [0.0]
                shared = float((np.max if coarse else np.median)(differences))
                most = max(shared, most) if coarse else shared
                self._sizes[key, stage] = sizes, most
                middle[stage] = max(float(np.median(differences)), middle.get(stage, 0.0))
                if middle[stage] >= CHAOTIC:
                    self._chaotic.add((key, stage))
                    self.lost = self.lost or base.step_of(place)

    def bound(self, stage: str, key: tuple[int, int], name: str) -> float:
        """Return the relative difference of a tensor that rounding explains."""
        sizes, shared = self._sizes.get((key, stage), ({}, 0.0))
        finer = 0.0 if self.finer is None else self.finer.bound(stage, key, name)
        times = COARSE if self.coarse else NUDGES
        return max(self.smallest, times * max(sizes.get(name, 0.0), shared), finer)

    def compares(self, stage: str, key: tuple[int, int], name: str) -> bool:
        """Return whether a comparison of a tensor shows anything."""
        own = self._sizes.get((key, stage), ({}, 0.0))[0].get(name, 0.0)
        whole = self.coarse and self.bound(stage, key, name) >= 1  # as much as the tensor itself
        return (key, stage) not in self._chaotic and own < CHAOTIC and not whole


def _common_steps(base: RunView, view: RunView) -> Iterator[tuple[tuple[int, int], int, int]]:
    """Return the key of each step of two runs, and its places in both."""
    for key in base.keys:
        if key in view.places:
            yield key, base.places[key], view.places[key]


def compare(base: RunView, view: RunView, rounding: Rounding) -> Difference:
    """Compare two runs."""
    rows: list[TensorRow] = []
    all_sizes: dict[tuple[int, str, str], float] = {}
    largest = 0.0
    bound_of_largest, compared = rounding.smallest, 0
    for key, *places in _common_steps(base, view):
        step = base.step_of(places[0])
        for stage in STAGES[: 2 if rounding.coarse else 3]:
            for name, size in _stage(base, view, stage, *places):
                bound = rounding.bound(stage, key, name)
                all_sizes[step, stage, name] = size
                if not rounding.compares(stage, key, name):
                    continue
                compared += stage == "gradient"
                largest = max(largest, size)
                if size > bound:
                    ranks = base.world_size, view.world_size
                    rows.append(TensorRow(stage, name, step, ranks, size, bound))
                else:
                    bound_of_largest = max(bound_of_largest, bound)
    first = rows[0].bound if rows else bound_of_largest
    return Difference(rows, largest, first, all_sizes, compared)


def _stage(
    base: RunView, view: RunView, stage: str, place: int, view_place: int
) -> list[tuple[str, float]]:
    """Return names and relative differences, in the order of the first run."""
    if stage == "learning rate":
        rates, base_rates = view.first.steps[view_place].lr, base.first.steps[place].lr
        sizes = relative({stage: np.array(rates)}, {stage: np.array(base_rates)})
        return list(sizes.items())
    reference, tensors = base.whole(stage, place), view.whole(stage, view_place)
    order = {name: number for number, name in enumerate(reference)}
    sizes = relative(tensors, reference)
    if stage == "gradient":
        weights = base.whole("weights", place)
        for name in sizes.keys() & weights.keys():
            norms = [norm(run[name]) for run in (reference, tensors) if name in run]
            if max(norms) < VANISHING * norm(weights[name]):
                sizes[name] = 0.0  # left by sums that cancel
    return sorted(sizes.items(), key=lambda pair: order.get(pair[0], 1 << 30))


class Unequal(NamedTuple):
    """A difference between the ranks of a run."""

    stage: str
    name: str  # of the tensor
    step: int  # from 1
    size: float  # relative


SHARED: dict[str, Callable[[StepRecord], Mapping[str, Floats | None]]] = {
    "initial weights": lambda step: step.before,
    "gradient": lambda step: {} if step.reduces else step.grad_probes,
    "weights": lambda step: step.after_probes,
    "buffers": lambda step: step.buffers,
}
"""What ranks have to share in a step, by stage."""


def replicas(view: RunView) -> Unequal | None:
    """Return the first difference between ranks."""
    stages = [(0, "initial weights")]
    if len({len(rank.steps) for rank in view.record.ranks}) == 1:
        places = range(len(view.first.steps))
        stages += [
            (place, stage) for place in places for stage in ("gradient", "weights", "buffers")
        ]
    for place, stage in stages:
        for name, value, other in _differences(view, place, stage):
            size = 1.0
            if value is not None and other is not None and value.shape == other.shape:
                size = norm(value - other) / (max(norm(value), norm(other)) or 1.0)
            step = 1 if stage == "initial weights" else view.step_of(place)
            return Unequal(stage, name, step, size)
    return None


def averaged_weights(view: RunView) -> tuple[int, int] | None:
    """Return the first step whose weights differ between ranks, and that before which they agree.

    Steps are numbered from 1. None unless the weights are then the mean of those of the ranks.
    """
    ranks = [_of_first_optimizer(rank) for rank in view.record.ranks]
    parted: int | None = None
    for place in range(1, min(len(steps) for steps in ranks)):
        names = [name for name, value in ranks[0][place].before.items() if value is not None]
        last = [steps[place - 1].after_probes for steps in ranks]
        if not any(_unequal(last[0].get(name), own.get(name)) for name in names for own in last):
            continue
        parted = place if parted is None else parted
        now = [steps[place].before for steps in ranks]
        if any(_unequal(now[0][name], own.get(name)) for name in names for own in now):
            continue
        for name in names:
            weights = [own.get(name) for own in (now[0], *last)]
            mean, *parts = [weight for weight in weights if weight is not None]
            if len({weight.shape for weight in (mean, *parts)}) > 1:
                return None
            if not np.allclose(np.mean(parts, axis=0), mean, rtol=1e-3, atol=1e-6):
                return None
        return parted, place + 1
    return None


def differing(view: RunView, place: int, stage: str) -> list[str]:
    """Return the names of tensors that differ between ranks in a step."""
    return [name for name, *_ in _differences(view, place, stage)]


def _differences(
    view: RunView, place: int, stage: str
) -> Iterator[tuple[str, Floats | None, Floats | None]]:
    """Return the tensors that differ between ranks: of rank 0, and of the first other rank."""
    ranks = view.record.ranks
    if any(place >= len(rank.steps) for rank in ranks):
        return
    first, *others = [SHARED[stage](rank.steps[place]) for rank in ranks]
    for name, value in first.items():
        unequal = [own[name] for own in others if name in own and _unequal(value, own[name])]
        if unequal:
            yield name, value, unequal[0]


def _unequal(tensor: Floats | None, other: Floats | None) -> bool:
    if tensor is None or other is None:
        present = tensor if tensor is not None else other
        return present is not None and bool(np.any(present))
    return not np.array_equal(tensor, other, equal_nan=True)
