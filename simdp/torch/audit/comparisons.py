"""Differences between runs, step by step, against what rounding explains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple

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
    def _by_key(self) -> dict[tuple[int, int], int]:
        return {key: place for place, key in enumerate(self.keys)}

    def step_of(self, place: int) -> int:
        """Return the number, from 1, of a step among all of the script."""
        return self.first.steps[place].at + self.skip + 1

    def place(self, key: tuple[int, int]) -> int | None:
        """Return the place of a step in the list of steps of rank 0."""
        return self._by_key.get(key)

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
        for place, step in enumerate(leading):
            if step.calls >= calls:
                return place
        return None

    def backwards(self, step: int) -> list[list[tuple[int, BackwardRecord]]]:
        """Return the backward passes of a step, by rank, with their numbers."""
        return self._backwards.get(step, [[] for _ in self.record.ranks])

    @cached_property
    def _backwards(self) -> dict[int, list[list[tuple[int, BackwardRecord]]]]:
        found: dict[int, list[list[tuple[int, BackwardRecord]]]] = {}
        for place, rank in enumerate(self.record.ranks):
            if self._follows(rank):
                continue
            for number, backward in enumerate(rank.backwards):
                step = self.global_step(rank, backward.step)
                if step is None or step >= self.count - self.skip:
                    continue
                rows = found.setdefault(step + self.skip, [[] for _ in self.record.ranks])
                rows[place].append((number, backward))
        return found

    def _follows(self, rank: RankRecord) -> bool:
        """Return whether a rank has the samples of another, and another part of the weights."""
        if rank.follows is None:
            return False
        leader = self.record.ranks[rank.follows]
        return [one.samples for one in rank.backwards] == [one.samples for one in leader.backwards]

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
        found: Tensors = {}
        active = [passes for passes in self.backwards(step) if passes]
        for place, passes in enumerate(self.backwards(step)):
            for number, backward in passes:
                factor = 1.0 if weights is None else weights.get((place, number), 1.0)
                for name, local in backward.local.items():
                    part = local * (factor / len(active))
                    if name not in found:
                        found[name] = part
                    elif found[name].shape == part.shape:  # else of a tensor of this rank alone
                        found[name] = found[name] + part
        return found

    def whole(self, stage: str, place: int) -> Tensors:
        """Return the gradients or weights of a step of rank 0, with shards of all ranks added.

        Of an optimizer that averages gradients itself, the mean of those of the ranks.
        """
        step = self.first.steps[place]
        if stage == "gradient" and step.reduces:
            return self.local(step.at + self.skip)
        found = {name: value for name, value in _of(step, stage).items() if value is not None}
        for rank in self.record.ranks[1:]:
            if place >= len(rank.steps):
                continue
            other = rank.steps[place]
            for name in other.shards:
                part = _of(other, stage).get(name)
                if part is not None and found.get(name, part).shape == part.shape:
                    found[name] = found[name] + part if name in found else part
        return found


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
        other = [name for name, one in rank.contents.items() if known.get(name, one) != one]
        modules = {name.rpartition(".")[0] for name in other}
        for name, content in rank.contents.items():
            if name.rpartition(".")[0] in modules:
                own[f"rank {number}: {name}"] = number
                known[f"rank {number}: {name}"] = content
            known.setdefault(name, content)
    found = _places(views, known)
    if any(own.get(place.name, rank) != rank for (_, rank, _), place in found.items()):
        return found  # what a rank of the first view has, another one of more ranks has
    return _places(views, {name: one for name, one in known.items() if name not in own})


def _places(views: Sequence[RunView], known: Contents) -> dict[tuple[int, int, str], Place]:
    found: dict[tuple[int, int, str], Place] = {}
    for view in views:
        held: set[tuple[str, int]] = set()
        for number, rank in enumerate(view.record.ranks):
            for name, (place, offset) in _spots(rank.contents, known).items():
                total, first = known[place][0], (place, offset) not in held
                held.add((place, offset))
                alone = number > 0 and place not in view.first.contents
                if place != name or rank.contents[name][0] != total or alone:
                    leads = first and number > 0
                    found[view.world_size, number, name] = Place(place, offset, total, leads)
    return found


def _spots(mine: Contents, known: Contents) -> dict[str, tuple[str, int]]:
    """Return the known name of each tensor of a rank, and its first element there.

    Tensors of one value, as biases of 0, are where the others of their module are.
    """
    by_content: dict[tuple[int, ...], list[tuple[str, int]]] = {}
    for name, (_, rows) in known.items():
        by_content.setdefault(rows, []).append((name, 0))
    found: dict[str, tuple[str, int]] = {}
    modules: dict[str, tuple[str, int]] = {}
    for name, (size, rows) in mine.items():
        spots = by_content.get(rows) or [
            (one, start)
            for one in known
            if one.endswith(name) and one.removesuffix(name)[-2:] in ("", ": ")
            for start in range(len(known[one][1]) - len(rows) + 1)
            if known[one][1][start : start + len(rows)] == rows
        ]
        if len(spots) == 1:
            place, start = spots[0]
            found[name] = place, start * size // len(rows)
            parts = zip(name.split(".")[::-1], place.split(".")[::-1], strict=False)
            same = len(list(takewhile(lambda pair: pair[0] == pair[1], parts)))
            prefix, theirs = (one.rsplit(".", same)[0] for one in (name, place))
            if place.endswith(name):
                prefix = name.rpartition(".")[0]
                theirs = place.removesuffix(name) + prefix
            if (place, known[place][0]) != (name, size):
                modules[prefix] = theirs, start
    for name, (size, rows) in mine.items():
        own = [one for one in modules if f"{name.rpartition('.')[0]}.".startswith(f"{one}.")]
        prefix = max(own, key=len, default=name)
        theirs, start = modules.get(prefix, (name, 0))
        place = theirs + name.removeprefix(prefix)
        if known.get(place, (0, ()))[1][start : start + len(rows)] == rows:
            found.setdefault(name, (place, start * size // len(rows)))
    return found


class Difference(NamedTuple):
    """Differences of two runs.

    Attributes
    ----------
    rows : list of TensorRow
        All compared tensors with a difference above rounding, in the order of steps and stages.
    size : float
        Largest relative difference of a tensor, anywhere.
    """

    rows: list[TensorRow]
    size: float
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


def relative(given: Tensors, reference: Tensors) -> dict[str, float]:
    """Return the relative difference of each tensor in the 2-norm."""
    largest = max((norm(value) for value in reference.values()), default=0.0)
    found = {}
    for name in reference.keys() | given.keys():
        one, other = given.get(name), reference.get(name)
        if one is None or other is None or one.shape != other.shape:
            present = one if one is not None else other
            found[name] = 0.0 if present is None or not norm(present) else 1.0
            continue
        scale = max(norm(other), SMALLEST * largest)
        difference = norm(one - other)
        if not np.isfinite(difference):
            same = bool(np.array_equal(one, other, equal_nan=True))
            found[name] = 0.0 if same else float("inf")
        else:
            found[name] = difference / scale if scale else float(difference > 0)
    return found


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
        for key in base.keys:
            mine, theirs = base.place(key), nudged.place(key)
            if mine is None or theirs is None:
                continue
            for stage in ("gradient",) if coarse else ("gradient", "weights"):
                found = relative(nudged.whole(stage, theirs), base.whole(stage, mine))
                # tensors share their rounding, and steps in short data types: one's may be small by
                # chance
                listed = list(found.values()) or [0.0]
                shared = float((np.max if coarse else np.median)(listed))
                most = max(shared, most) if coarse else shared
                self._sizes[key, stage] = found, most
                middle[stage] = max(float(np.median(listed)), middle.get(stage, 0.0))
                if middle[stage] >= CHAOTIC:
                    self._chaotic.add((key, stage))
                    self.lost = self.lost or base.step_of(mine)

    def bound(self, stage: str, key: tuple[int, int], name: str) -> float:
        """Return the relative difference of a tensor that rounding explains."""
        found, shared = self._sizes.get((key, stage), ({}, 0.0))
        finer = 0.0 if self.finer is None else self.finer.bound(stage, key, name)
        return max(self.smallest, self._times * max(found.get(name, 0.0), shared), finer)

    @property
    def _times(self) -> int:
        return COARSE if self.coarse else NUDGES

    def compares(self, stage: str, key: tuple[int, int], name: str) -> bool:
        """Return whether a comparison of a tensor shows anything."""
        own = self._sizes.get((key, stage), ({}, 0.0))[0].get(name, 0.0)
        whole = self.coarse and self.bound(stage, key, name) >= 1  # as much as the tensor itself
        return (key, stage) not in self._chaotic and own < CHAOTIC and not whole


def compare(one: RunView, other: RunView, rounding: Rounding) -> Difference:
    """Compare two runs."""
    rows: list[TensorRow] = []
    all_sizes: dict[tuple[int, str, str], float] = {}
    largest = 0.0
    bound_of_largest, compared = rounding.smallest, 0
    for key in one.keys:
        mine, theirs = one.place(key), other.place(key)
        if mine is None or theirs is None:
            continue
        for stage in STAGES:
            if stage == "weights" and rounding.coarse:
                continue
            for name, size in _stage(one, other, stage, mine, theirs):
                bound = rounding.bound(stage, key, name)
                all_sizes[one.step_of(mine), stage, name] = size
                if not rounding.compares(stage, key, name):
                    continue
                compared += stage == "gradient"
                largest = max(largest, size)
                if size > bound:
                    sizes = one.world_size, other.world_size
                    rows.append(TensorRow(stage, name, one.step_of(mine), sizes, size, bound))
                else:
                    bound_of_largest = max(bound_of_largest, bound)
    first = rows[0].bound if rows else bound_of_largest
    return Difference(rows, largest, first, all_sizes, compared)


def _stage(
    one: RunView, other: RunView, stage: str, mine: int, theirs: int
) -> list[tuple[str, float]]:
    """Return names and relative differences, in the order of the first run."""
    if stage == "learning rate":
        rates = [view.first.steps[place].lr for view, place in ((one, mine), (other, theirs))]
        found = relative({"lr": np.array(rates[1])}, {"lr": np.array(rates[0])})
        return [("learning rate", size) for size in found.values()]
    reference, given = one.whole(stage, mine), other.whole(stage, theirs)
    order = {name: place for place, name in enumerate(reference)}
    sizes = relative(given, reference)
    if stage == "gradient":
        weights = one.whole("weights", mine)
        for name in sizes.keys() & weights.keys():
            both = [norm(one[name]) for one in (reference, given) if name in one]
            if max(both) < VANISHING * norm(weights[name]):
                sizes[name] = 0.0  # left by sums that cancel
    return [(name, sizes[name]) for name in sorted(sizes, key=lambda one: order.get(one, 1 << 30))]


def replicas(view: RunView) -> tuple[str, str, int, float] | None:
    """Return the first difference between ranks: stage, name, step, and relative size."""
    ranks = view.record.ranks
    initial = _between(ranks, 0, lambda step: step.before)
    if initial is not None:
        return "initial weights", initial[0], 1, initial[1]
    for place in range(len(view.first.steps)):
        if any(len(rank.steps) != len(view.first.steps) for rank in ranks):
            return None
        number = view.step_of(place)
        found = _between(ranks, place, _reduced)
        if found is not None:
            return "gradient", found[0], number, found[1]
        found = _between(ranks, place, lambda step: step.after_probes)
        if found is not None:
            return "weights", found[0], number, found[1]
        found = _between(ranks, place, lambda step: step.buffers)
        if found is not None:
            return "buffers", found[0], number, found[1]
    return None


def _reduced(step: StepRecord) -> dict[str, Floats | None]:
    """Return what ranks have to share of the gradients before a step."""
    return {} if step.reduces else step.grad_probes


def averaged_weights(view: RunView) -> tuple[int, int] | None:
    """Return the first step whose weights differ between ranks, and that before which they agree.

    Steps are numbered from 1. None unless the weights are then the mean of those of the ranks.
    """
    ranks = [_of_first_optimizer(rank) for rank in view.record.ranks]
    parted: int | None = None
    for place in range(1, min(len(steps) for steps in ranks)):
        names = [name for name, value in ranks[0][place].before.items() if value is not None]
        last = [steps[place - 1].after_probes for steps in ranks]
        if not any(_unequal(last[0].get(name), one.get(name)) for name in names for one in last):
            continue
        parted = place if parted is None else parted
        now = [steps[place].before for steps in ranks]
        if any(_unequal(now[0][name], one.get(name)) for name in names for one in now):
            continue
        for name in names:
            known = [one[name] for one in (now[0], *last) if one.get(name) is not None]
            if len({one.shape for one in known}) > 1:  # type: ignore[union-attr]
                return None
            if not np.allclose(np.mean(known[1:], axis=0), known[0], rtol=1e-3, atol=1e-6):  # type: ignore[arg-type]
                return None
        return parted, place + 1
    return None


def differing(view: RunView, place: int, stage: str) -> list[str]:
    """Return the names of tensors that differ between ranks in a step."""
    ranks = view.record.ranks
    if any(place >= len(rank.steps) for rank in ranks):
        return []
    steps = [rank.steps[place] for rank in ranks]
    pick: list[dict[str, Any]] = [
        step.before
        if stage == "initial weights"
        else _reduced(step)
        if stage == "gradient"
        else step.buffers
        for step in steps
    ]
    found = []
    for name, value in pick[0].items():
        for other in pick[1:]:
            if name not in other:
                continue
            theirs = other.get(name)
            if _unequal(value, theirs):
                found.append(name)
                break
    return found


def _unequal(one: Floats | None, other: Floats | None) -> bool:
    if one is None or other is None:
        present = one if one is not None else other
        return present is not None and bool(np.any(present))
    return not np.array_equal(one, other, equal_nan=True)


def _between(
    ranks: Sequence[RankRecord], place: int, pick: Callable[[StepRecord], Any]
) -> tuple[str, float] | None:
    if any(place >= len(rank.steps) for rank in ranks):
        return None
    found = [pick(rank.steps[place]) for rank in ranks]
    for name, value in found[0].items():
        for other in found[1:]:
            if name not in other:
                continue
            theirs = other.get(name)
            if not _unequal(value, theirs):
                continue
            if value is None or theirs is None or value.shape != theirs.shape:
                return name, 1.0
            return name, norm(value - theirs) / (max(norm(value), norm(theirs)) or 1.0)
    return None
