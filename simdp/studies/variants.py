"""Variants: a scenario with other values at a few of its keys, made again only where they stand."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from simdp.cluster import Cluster
from simdp.collectives.costs import Cost
from simdp.collectives.costs.nccl import NcclCost
from simdp.errors import ScenarioError
from simdp.phrases import problems
from simdp.scenario import Scenario
from simdp.scenario.overrides import set_key
from simdp.spec import Spec

S = TypeVar("S", bound=Spec)


def with_values(
    scenario: Scenario, raw: Mapping[str, Any], values: Mapping[str, Any], where: str = ""
) -> Scenario:
    """Set keys of a scenario.

    Parameters
    ----------
    scenario : Scenario
        Valid.
    raw : dict
        The same as plain data, as `Scenario.resolved` writes it.
    values : mapping of str to value
        Dotted keys, and what stands there now, as in YAML.
    where : str
        Leads the errors: the place that the values come from.

    Raises
    ------
    ScenarioError
        If there is no such key, or a value does not suit it.
    """
    try:
        made = _made(scenario, raw, values)
    except ScenarioError as error:
        if not where:
            raise
        raise ScenarioError([f"{where}: {line}" for line in error.problems]) from None
    return scenario.model_copy(update=made)


COST = "collectives.cost"
"""A part that is made anew by itself: nothing else of its section depends on it."""


def _made(scenario: Scenario, raw: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Make the sections anew that hold the keys."""
    inside = [key for key in values if key.startswith(f"{COST}.") and key != f"{COST}.kind"]
    made = _made_cost(scenario, raw, {key: values[key] for key in inside}) if inside else {}
    sections: dict[str, Any] = {}
    for key, value in values.items():
        if key in inside:
            continue
        section = key.split(".")[0]
        part = sections.setdefault(section, {section: copy.deepcopy(raw.get(section))})
        set_key(part, key, value)
    for section, part in sections.items():
        old = getattr(scenario, section, None)
        if old is None or not hasattr(old, "model_validate"):
            raise ScenarioError(
                [f"{section}: is no constant; give a key of cluster, workload, ..."]
            )
        if section in made:  # its cost changes as well
            part[section]["cost"] = made[section].cost.model_dump(mode="json", exclude_none=True)
        try:
            new = type(old).model_validate(part[section], context={"base": scenario.base})
        except ValidationError as error:
            lines = [f"{section}.{found.line}" for found in problems(error, part[section])]
            raise ScenarioError(lines) from None
        made[section] = new.settled(scenario.base) if hasattr(new, "settled") else new
    return made


def _made_cost(
    scenario: Scenario, raw: Mapping[str, Any], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Make the section of collectives anew that has another cost."""
    part = {"collectives": {"cost": copy.deepcopy(raw["collectives"]["cost"])}}
    for key, value in values.items():
        set_key(part, key, value)
    written, old = part["collectives"]["cost"], scenario.collectives
    if isinstance(old.cost, NcclCost):  # which reads no file
        cost: Cost = _nccl_cost(json.dumps(written))
    else:
        cost = _cost(type(old.cost), written, scenario.base)
    return {"collectives": old.model_copy(update={"cost": cost})}


@lru_cache(maxsize=512)
def _nccl_cost(written: str) -> Cost:
    """A cost that points of a sweep have in common, by its JSON."""
    return _cost(NcclCost, json.loads(written), Path())


def _cost(kind: type[Cost], written: Any, base: Path) -> Cost:
    try:
        made: Cost = kind.model_validate(written, context={"base": base})
    except ValidationError as error:
        lines = [
            f"{COST}{'.' if found.place else ': '}{found.line}"
            for found in problems(error, written)
        ]
        raise ScenarioError(lines) from None
    return made.settled(base)


def value_at(here: Any, key: str) -> Any:
    """Find what stands at a dotted key; None if nothing does.

    Parameters
    ----------
    here : Scenario or mapping
        A scenario, or one as plain data.
    key : str
        Where all that is inside is the same, as a hop of every protocol, it is that.
    """
    for part in key.split("."):
        if isinstance(here, list | tuple):
            here = here[int(part)] if part.isdecimal() and int(part) < len(here) else None
        else:
            here = _inside(here).get(part)
    each = list(_inside(here).values())
    return each[0] if each and all(one == each[0] for one in each) else here


def _inside(value: Any) -> Mapping[str, Any]:
    """Keys of a mapping or of a spec; anything else has none."""
    if isinstance(value, Spec):
        return dict(value)
    return value if isinstance(value, Mapping) else {}


def with_numbers(spec: S, values: Mapping[str, float]) -> S:
    """Set numbers of a valid spec, or of specs inside it, that are known to suit it.

    Parameters
    ----------
    spec : Spec
        A scenario, for example.
    values : mapping of str to float
        Dotted keys, and what stands there now, in SI units. Where there are keys inside, as those
        of all protocols, each gets it.
    """
    inside: dict[str, dict[str, float]] = {}
    for key, value in values.items():
        first, _, rest = key.partition(".")
        inside.setdefault(first, {})[rest] = value
    update = {key: _numbers(getattr(spec, key), below) for key, below in inside.items()}
    forgets = isinstance(spec, Scenario | Cluster)
    if forgets:  # what they worked out of their old values
        return spec.model_copy(update=update)
    made: Any = type(spec).model_construct(spec.model_fields_set, **{**dict(spec), **update})
    found: S = made
    return found


def _numbers(old: Any, values: Mapping[str, float]) -> Any:
    if isinstance(old, list | tuple):
        made = [
            _numbers(one, below) if (below := _below(values, str(index))) else one
            for index, one in enumerate(old)
        ]
        return type(old)(made)
    if not isinstance(old, Spec):
        return values[""]
    whole = values.get("")
    return with_numbers(old, dict(values) if whole is None else dict.fromkeys(dict(old), whole))


def _below(values: Mapping[str, float], part: str) -> dict[str, float]:
    """Values of the keys that begin with a part, without it."""
    return {
        rest: value
        for key, value in values.items()
        for first, _, rest in [key.partition(".")]
        if first == part
    }
