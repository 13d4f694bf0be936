"""Variants: a scenario with other values at a few of its keys, made again only where they stand."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from simdp.errors import ScenarioError
from simdp.overrides import set_key
from simdp.scenario import Scenario
from simdp.spec import problems


def with_values(scenario: Scenario, raw: Mapping[str, Any], values: Mapping[str, Any]) -> Scenario:
    """Set keys of a scenario.

    Parameters
    ----------
    scenario : Scenario
        Valid.
    raw : dict
        The same as plain data, as `Scenario.resolved` writes it.
    values : mapping of str to value
        Dotted keys, and what stands there now, as in YAML.

    Raises
    ------
    ScenarioError
        If there is no such key, or a value does not suit it.
    """
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
    changed = scenario.model_copy(update=made)
    changed._base = scenario.base
    return changed


def value_at(raw: Any, key: str) -> Any:
    """What stands at a dotted key of a scenario as plain data; None if nothing does."""
    for part in key.split("."):
        if isinstance(raw, list) and part.isdecimal() and int(part) < len(raw):
            raw = raw[int(part)]
        elif isinstance(raw, Mapping):
            raw = raw.get(part)
        else:
            return None
    return raw
