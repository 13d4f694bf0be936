"""Definitions of what fields refer to: families by kind, parts of the catalogue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from simdp.family import WRITTEN_OUT
from simdp.files import Catalogue
from simdp.scenario.machines import MERGED
from simdp.spec import Spec, one_of
from simdp.studies.presets import describe
from simdp.studies.schema.docstrings import about
from simdp.studies.schema.generator import WHERE, Definitions, Schema

BETWEEN = "[-_ ]*"
"""What may stand between the letters of a kind, which may be spelled freely: see `one_of`."""

OUTSIDE = "outside_member"
"""Definition of a member from outside, of any family, whose keys nobody knows here."""

_CLASS: Schema = {
    "type": "string",
    "pattern": f"^{WRITTEN_OUT}$",
    "description": "A class of your own: module:Class.",
}


def first_line(spec: type[Spec]) -> str:
    """What a Spec is, in short."""
    return about(spec).split("\n")[0]


def names_schema(lines: Mapping[str, str]) -> list[Schema]:
    """Words, each with what it stands for."""
    return [{"const": name, "description": line} for name, line in lines.items()]


def kinds_of(marker: one_of) -> dict[str, str]:
    """Every kind of a family and every other name, with what it is."""
    kinds = {kind: first_line(member) for kind, member in sorted(marker.table.items())}
    for name, preset in sorted(marker.presets.items()):
        real = isinstance(marker.presets, Catalogue)
        kinds[name] = describe(name) if real else f"Another name of {preset['kind']}."
    return kinds


def add_family(
    name: str, marker: one_of, definitions: Definitions, places: Mapping[type[Spec], str]
) -> None:
    """Add a family and its kinds to the definitions, and the kinds to those of its members.

    Parameters
    ----------
    name : str
        Of the family's definition.
    marker : one_of
        Of its fields.
    definitions : dict of str to dict
        Those of the members among them; changed.
    places : mapping of type to str
        Names of the members' definitions.
    """
    kinds, needs = kinds_of(marker), dict[str, list[str]]()
    kindless = name in MERGED  # a machine may have said it
    for kind, member in marker.table.items():
        names = [
            kind,
            *(other for other in marker.presets if marker.presets[other]["kind"] == kind),
        ]
        lines = {each: kinds[each] for each in names}
        needs[kind] = _add_kinds(
            lines, definitions[places[member]], kindless or marker.by_key or kind == marker.default
        )
    bare = {kind: line for kind, line in kinds.items() if not needs.get(kind)}
    members = [{"$ref": WHERE + places[member]} for _, member in sorted(marker.table.items())]
    definitions[f"{name}_kind"] = {"anyOf": [*_words(kinds), _CLASS]}
    definitions[name] = {"anyOf": [*_words(bare), *members, _CLASS, {"$ref": WHERE + OUTSIDE}]}


def outside_schema() -> Schema:
    """A member from outside, written out."""
    return {"type": "object", "properties": {"kind": _CLASS}, "required": ["kind"]}


def _add_kinds(lines: Mapping[str, str], member: Schema, usual: bool) -> list[str]:
    """Say in a member's definition how its kind may be given; return the keys that it needs.

    Parameters
    ----------
    lines : mapping of str to str
        The member's kind and its other names, with what they stand for.
    member : dict
        Its definition; changed.
    usual : bool
        Whether the kind may be left out.
    """
    kind, *others = lines
    own = {key: inner for key, inner in member["properties"].items() if key != "kind"}
    forms = [*names_schema(lines), _spelled(lines)]
    member["properties"] = {"kind": {"anyOf": forms}, **own}
    keys = [key for key in member.pop("required", []) if key != "kind"]
    if keys and others:  # another name may bring them along
        member["if"] = {"properties": {"kind": _spelled([kind])}}
        member["then"] = {"required": keys}
    required = [] if usual else ["kind"]
    required += [] if others else keys
    member |= {"required": required} if required else {}
    return keys


def _words(lines: Mapping[str, str]) -> list[Schema]:
    """Kinds as words, and what else YAML may make of them."""
    nothing = [{"enum": [None, False], "description": lines["none"]}] if "none" in lines else []
    return [*names_schema(lines), _spelled(lines), *nothing] if lines else []


def _spelled(kinds: Iterable[str]) -> dict[str, Any]:
    """Kinds however they may be spelled."""
    ways = [
        BETWEEN.join(f"[{c.lower()}{c.upper()}]" if c.isalpha() else re.escape(c) for c in letters)
        for letters in (re.sub(BETWEEN, "", kind) for kind in kinds)
    ]
    return {"type": "string", "pattern": f"^{BETWEEN}({'|'.join(ways)}){BETWEEN}$"}
