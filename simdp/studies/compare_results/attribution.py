"""Attribution: what each key that differs does to a step, by changing it alone, both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from simdp.engine.simulate import simulate, times_alone
from simdp.errors import ScenarioError
from simdp.results.difference import KeyChange
from simdp.scenario import checked
from simdp.scenario.overrides import Raw
from simdp.studies.answers import MAX_RANKS, is_short
from simdp.studies.compare_results.keys import Differing, with_a, with_b
from simdp.studies.compare_results.sides import STEP_PARTS
from simdp.studies.variant import variant

MAX_KEYS = 8
"""Keys that are changed one at a time; where more differ, nobody looks at each."""

MAX_STEPS = 20
"""Of a run that is repeated."""

MAX_RUNS = 64
"""Short runs for all points of two results."""

Metrics = Mapping[str, float]


@dataclass
class Budget:
    """How many short runs are left.

    Attributes
    ----------
    runs : int
        So many.
    spent : bool
        Whether keys were left out for want of them.
    """

    runs: int = MAX_RUNS
    spent: bool = False
    _known: dict[str, Metrics | None] = field(default_factory=dict)

    def metrics(self, raw: Raw, base: Path, steps: int) -> Metrics | None:
        """Parts of a step [s]; None where the scenario cannot be, or takes long to play."""
        key = repr((raw, steps))
        if key not in self._known:
            self.runs -= 1
            self._known[key] = _metrics(raw, base, steps)
        return self._known[key]


def attributed(
    a: Raw, b: Raw, base: Path, steps: int, changed: Sequence[Differing], budget: Budget
) -> list[KeyChange]:
    """Say what each key does, that which does most first.

    Parameters
    ----------
    a, b : dict
        Scenarios with every default spelled out.
    base : Path
        Folder that the paths of both start from.
    steps : int
        Of the shorter of the two results.
    changed : sequence of Differing
        Where they differ.
    budget : Budget
        Is used up.
    """
    plain = [KeyChange(one.key, one.a, one.b) for one in changed]
    needed = 2 * len(changed) + 4
    if len(changed) > MAX_KEYS or needed > budget.runs:
        budget.spent = budget.spent or bool(changed)
        return plain
    steps = min(steps, MAX_STEPS)
    first, last = (budget.metrics(raw, base, steps) for raw in (a, b))
    if first is None or last is None:
        return plain

    def alone(one: Differing) -> list[dict[str, float] | None]:
        return [
            _less(budget.metrics(with_b(a, one), base, steps), first),
            _less(last, budget.metrics(with_a(b, one), base, steps)),
        ]

    found = [_with(change, alone(one)) for one, change in zip(changed, plain, strict=True)]
    left = [n for n, change in enumerate(found) if change.seconds is None]
    if 1 < len(left) < len(changed):  # keys that need each other
        joint = Differing("", None, None, tuple(leaf for n in left for leaf in changed[n].leaves))
        head, *others = left
        said = _with(plain[head], alone(joint))
        if said.seconds is not None:
            found[head] = replace(said, together=tuple(changed[n].key for n in others))
            for n in others:
                found[n] = replace(plain[n], together=(changed[head].key,))
    return sorted(found, key=lambda change: -abs(change.seconds or 0.0))


def _with(change: KeyChange, ways: Sequence[dict[str, float] | None]) -> KeyChange:
    """Fill in what the key adds: from A, and to B."""
    known = [way for way in ways if way is not None]
    if not known:
        return change
    mean = {name: fmean(way[name] for way in known) for name in STEP_PARTS}
    seconds = mean.pop("step_time_s")
    from_a, to_b = (None if way is None else way["step_time_s"] for way in ways)
    return replace(change, seconds=seconds, from_a=from_a, to_b=to_b, parts=mean)


def _less(after: Metrics | None, before: Metrics | None) -> dict[str, float] | None:
    if after is None or before is None:
        return None
    return {name: after[name] - before[name] for name in STEP_PARTS}


def _metrics(raw: Raw, base: Path, steps: int) -> Metrics | None:
    try:
        scenario = checked(raw, base)
    except ScenarioError:
        return None
    if scenario.cluster.world_size > MAX_RANKS or scenario.strategy.player != "together":
        return None
    short = variant(scenario, {}, steps)
    if short is None:
        return None
    found = times_alone(short)
    if found is None and is_short(short):
        found = simulate(short)
    if found is None:
        return None
    metrics: dict[str, Any] = found.metrics
    return {name: float(metrics[name]) for name in STEP_PARTS}
