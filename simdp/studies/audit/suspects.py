"""Options of a scenario that may make training differ from one device's, and how to undo them."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from simdp.errors import ScenarioError
from simdp.keys import written
from simdp.results.audit import Cause, LegitimateCause
from simdp.scenario import checked
from simdp.scenario.overrides import Raw, set_key
from simdp.scenario.root import Scenario
from simdp.strategies import strategy_class
from simdp.strategies.base import AVERAGED
from simdp.studies.audit.sides import Differences
from simdp.workload.layers.batchnorm import BatchNorm
from simdp.workload.layers.tensor_ops import Dropout

Changes = dict[str, Any]

BY_ITEMS = ("loss_mean_of_rank_means", "last_batch_smaller")
"""Causes that act only where ranks or micro-steps have different numbers of items."""

PROBABILITY = re.compile(r"dropout|pdrop|drop_path|drop_rate")
"""Keys of a model that are probabilities of dropout."""


class Suspect(NamedTuple):
    """An option, and the changes that undo it."""

    cause: Cause | LegitimateCause
    key: str
    """Dotted key of the option."""
    text: str
    """A sentence: what it does."""
    without: Changes
    """Dotted keys and values; those of ``strategy`` as a whole come first."""
    is_last: bool = False
    """Whether it is tried only after all others, since its changes undo more than this option."""

    def hides(self, other: Suspect) -> bool:
        """Whether it replaces the strategy by one without the other's options."""
        options = _options(self.without.get("strategy"))
        of_strategy = all(key.startswith("strategy.") for key in other.without)
        kept = {key.removeprefix("strategy.") for key in other.without} & (options or set())
        return options is not None and of_strategy and not kept

    @property
    def words(self) -> str:
        """Its changes as settings."""
        return ", ".join(f"{key}: {written(value)}" for key, value in self.without.items())


def plain(scenario: Scenario) -> Raw:
    """Return a scenario as plain data, without what does not change its numbers."""
    raw = scenario.resolved()
    left_out = ("sweep", "measured", "neighbours", "target", "checkpoint", "recovery")
    return {key: value for key, value in raw.items() if key not in left_out}


def exact_changes(scenario: Scenario) -> Changes:
    """Return the changes by which a scenario computes in float64; empty if it does already."""
    changes: Changes = {}
    written_as = scenario.strategy.model_dump(mode="json", exclude_none=True)
    options = scenario.strategy.precision_options
    changes |= {f"strategy.{key}": None for key in options if key in written_as}
    if scenario.workload.precision.kind != "full":
        changes["workload.precision"] = "full"
    if scenario.workload.dtype != "float64":
        changes["workload.dtype"] = "float64"
    return changes


def changed(raw: Raw, changes: Sequence[Changes], base: Path) -> Scenario:
    """Set keys of a scenario.

    Raises
    ------
    ScenarioError
        If the result is invalid.
    """
    made = copy.deepcopy(raw)
    items = [item for change in changes for item in change.items()]
    items.sort(key=lambda item: item[0] != "strategy")  # options follow a new strategy
    options = _options(next((value for key, value in items if key == "strategy"), None))
    for key, value in items:
        option = key.removeprefix("strategy.")
        if options is None or option == key or option in options:  # not of the old strategy
            set_key(made, key, value)
    if made["workload"].get("dtype") == "float64":
        _give_float64(made["cluster"])
    return checked(made, base)


def _options(strategy: object) -> set[str] | None:
    """Options of a strategy as plain data; None without one."""
    kind = strategy["kind"] if isinstance(strategy, dict) else strategy
    return None if kind is None else set(strategy_class(str(kind)).model_fields)


def _give_float64(cluster: Raw) -> None:
    """Give devices a rate in float64 where they have none; times do not matter here."""
    devices = cluster.get("device")
    for device in devices if isinstance(devices, list) else [devices]:
        peak = device.get("peak") if isinstance(device, dict) else None
        if isinstance(peak, dict) and "float32" in peak:
            peak.setdefault("float64", peak["float32"])


def suspects_of(scenario: Scenario, seen: Differences) -> list[Suspect]:
    """List the options of a scenario that may act, in the order in which they are tried."""
    suspects = [*_of_strategy(scenario, seen), *_of_model(scenario), *_of_workload(scenario)]
    return [suspect for suspect in suspects if seen.is_uneven or suspect.cause not in BY_ITEMS]


def _of_strategy(scenario: Scenario, seen: Differences) -> Iterator[Suspect]:
    for departure in scenario.strategy.departures(scenario.workload):
        text = departure.text
        if departure.cause == "loss_mean_of_rank_means":
            low, high = seen.items
            text += f": {low} to {high} in a step" if low != high else ""
        cause = cast(Cause | LegitimateCause, departure.cause)
        yield Suspect(cause, departure.key, text, departure.without)


def _of_model(scenario: Scenario) -> Iterator[Suspect]:
    workload = scenario.workload
    layers = [call.layer for call in workload.graph.calls]
    if any(isinstance(layer, BatchNorm) for layer in layers):
        text = "batch norm normalises the samples of each rank and micro-step alone"
        changes: Changes = {"workload.sync_batchnorm": True}
        accumulate = workload.grad_accum
        if isinstance(accumulate, int) and accumulate > 1:
            changes["workload.grad_accum"] = 1
            if workload.microbatch is not None:
                changes["workload.microbatch"] = workload.microbatch * accumulate
        key = "workload.sync_batchnorm"
        yield Suspect("batchnorm_local_statistics", key, text, changes)
        by_ddp = {**AVERAGED, **changes}  # for methods that refuse it
        yield Suspect("batchnorm_local_statistics", key, text, by_ddp, True)
    if any(isinstance(layer, Dropout) for layer in layers):
        keys = list(_probabilities(plain(scenario)["workload"]["model"], "workload.model"))
        if keys:
            text = "dropout draws other masks on several ranks"
            yield Suspect("dropout_streams", keys[0], text, dict.fromkeys(keys, 0.0))


def _probabilities(value: object, place: str) -> Iterator[str]:
    """Yield the dotted keys of dropout's probabilities above 0."""
    if isinstance(value, dict):
        is_layer = value.get("kind") == "dropout"
        for key, inner in value.items():
            named = PROBABILITY.search(str(key)) or (is_layer and key == "p")
            if named and isinstance(inner, float | int) and inner > 0:
                yield f"{place}.{key}"
            else:
                yield from _probabilities(inner, f"{place}.{key}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _probabilities(inner, f"{place}.{number}")


def _of_workload(scenario: Scenario) -> Iterator[Suspect]:
    workload = scenario.workload
    if workload.unused:
        text = "the loss of some ranks does not depend on all parameters"
        without: Changes = {"workload.unused": {}}
        yield Suspect("unused_parameters", "workload.unused", text, without)
    for key in ("clip_grad_norm", "clip_grad_value"):
        if getattr(workload, key) is not None:
            dotted = f"workload.{key}"
            text = "gradients are clipped before they are averaged"
            without = {dotted: None}
            if key == "clip_grad_norm" and workload.norm_type != 2.0:
                without["workload.norm_type"] = 2.0
            yield Suspect("clip_before_average", dotted, text, without)
    if not workload.drop_last and workload.dataset.has_samples:
        text = "the last batch of an epoch is smaller, and its ranks have different numbers"
        without = {"workload.drop_last": True}
        yield Suspect("last_batch_smaller", "workload.drop_last", text, without, True)


def valid(raw: Raw, changes: Sequence[Changes], base: Path) -> Scenario | None:
    """As `changed`; None where the scenario would be invalid."""
    try:
        return changed(raw, changes, base)
    except ScenarioError:
        return None
