"""Variants: a scenario with other values at a few of its keys, made again only where they stand."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from simdp.errors import ScenarioError
from simdp.phrases import problems
from simdp.scenario import Scenario
from simdp.scenario.overrides import set_key
from simdp.spec import Spec


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


def _made(scenario: Scenario, raw: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Make the sections anew that hold the keys."""
    sections: dict[str, Any] = {}
    for key, value in values.items():
        section = key.split(".")[0]
        part = sections.setdefault(section, {section: copy.deepcopy(raw.get(section))})
        set_key(part, key, value)
    made: dict[str, Any] = {}
    for section, part in sections.items():
        old = getattr(scenario, section, None)
        if old is None or not hasattr(old, "model_validate"):
            raise ScenarioError(
                [f"{section}: is no constant; give a key of cluster, workload, ..."]
            )
        try:
            new = type(old).model_validate(part[section], context={"base": scenario.base})
        except ValidationError as error:
            lines = [f"{section}.{found.line}" for found in problems(error, part[section])]
            raise ScenarioError(lines) from None
        made[section] = new.settled(scenario.base) if hasattr(new, "settled") else new
    return made


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
