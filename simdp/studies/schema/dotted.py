"""Dotted keys in the schema: what a sweep may list, and what a measured point may set.

A key that only the sweep gives is missing in the file itself, so that a scenario with a sweep is
held to definitions in which nothing is required: each that requires something has another one,
called ``..._part``. Members from outside are known by nothing but their kind, which they keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from simdp.studies.schema.families import OUTSIDE
from simdp.studies.schema.generator import WHERE, Definitions, Schema

PART = "_part"

UNDOTTED = ("name", "sweep", "measured")
"""Keys of a scenario whose inside has no dotted keys."""


def parts(definitions: Definitions) -> Definitions:
    """Copies in which nothing is required, of definitions in which something is."""
    needy = {name for name, definition in definitions.items() if _requires(definition)} - {OUTSIDE}
    while more := {n for n, d in definitions.items() if needy & {*references(d)}} - needy:
        needy |= more
    return {name + PART: _copied(name, definitions[name], needy) for name in sorted(needy)}


def _requires(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (isinstance(value, dict) and "required" in value) or any(map(_requires, inner))


def references(value: Any) -> Iterator[str]:
    """Names of the definitions that a schema refers to."""
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"].removeprefix(WHERE)
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        yield from references(inner)


def _copied(name: str, definition: Schema, needy: Iterable[str]) -> Schema:
    """A definition without what it requires; keys that need no copy are those of the original."""
    made: Schema = _without(definition, needy)
    for key, inner in definition.get("properties", {}).items():
        if made["properties"][key] == inner:
            made["properties"][key] = {"$ref": f"{WHERE}{name}/properties/{key}"}
    return made


def _without(value: Any, needy: Iterable[str]) -> Any:
    if isinstance(value, list):
        return [_without(inner, needy) for inner in value]
    if not isinstance(value, dict):
        return value
    found = {key: _without(inner, needy) for key, inner in value.items() if key != "required"}
    if found.get("$ref", "").removeprefix(WHERE) in needy:
        found["$ref"] += PART
    return found


def settings(definitions: Definitions) -> dict[str, Schema]:
    """What may be set at each dotted key, up to those of the members of families."""
    found: dict[str, list[Schema]] = {}
    for key, schema in _keys(definitions, "Scenario" + PART):
        known = [_resolved(definitions, other) for other in found.setdefault(key, [])]
        if key.split(".")[0] not in UNDOTTED and _resolved(definitions, schema) not in known:
            found[key].append(schema)
    forms = {key: same for key, same in found.items() if same}
    return {key: same[0] if len(same) == 1 else {"anyOf": same} for key, same in forms.items()}


def _resolved(definitions: Definitions, schema: Schema) -> Schema:
    """What a reference to a key of a definition stands for; others are left."""
    name, _, key = schema.get("$ref", "").removeprefix(WHERE).partition("/properties/")
    return _resolved(definitions, definitions[name]["properties"][key]) if key else schema


def _keys(
    definitions: Definitions, name: str, lead: str = "", member: bool = False
) -> Iterator[tuple[str, Schema]]:
    """Keys inside a definition, and inside of what they refer to."""
    for key, schema in definitions[name]["properties"].items():
        here = {"$ref": f"{WHERE}{name}/properties/{key}"}
        if member and key == "kind":
            continue  # the family's own
        yield lead + key, schema if [*schema] == ["$ref"] else here
        for inner in (schema, *schema.get("anyOf", [])):
            there = inner.get("$ref", "").removeprefix(WHERE)
            yield from _inside(definitions, there, f"{lead}{key}.", member)


def _inside(
    definitions: Definitions, name: str, lead: str, member: bool
) -> Iterator[tuple[str, Schema]]:
    """Keys inside a definition that a key refers to: a Spec, or the members of a family."""
    schema = definitions.get(name, {})
    if "properties" in schema:
        yield from _keys(definitions, name, lead, member)
    kinds = f"{name.removesuffix(PART)}_kind"
    if kinds in definitions and not member:
        yield f"{lead}kind", {"$ref": WHERE + kinds}
        for each in schema["anyOf"]:
            there = each.get("$ref", "").removeprefix(WHERE)
            if there not in ("", kinds):
                yield from _keys(definitions, there, lead, True)
