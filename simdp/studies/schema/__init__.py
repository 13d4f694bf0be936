"""The JSON Schema of a scenario: what editors complete, and what the reference is written from.

pydantic makes it of the Specs (`generator`), with what their docstrings say (`docstrings`); to that
come families by kind (`families`), and what dotted keys may set (`dotted`). It takes all that
``check`` takes and refuses what a schema can; what follows from several keys, or from files, it
leaves to ``check``. Of what comes from outside it knows ``module:Class``, but no name that an
installed package offers. It keeps to draft 7, which editors know.
"""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import NamedTuple

from simdp.cluster import device, link
from simdp.scenario import Scenario
from simdp.spec import Quantity, Spec, from_catalogue, one_of
from simdp.studies.schema.dotted import PART, UNDOTTED, parts, settings
from simdp.studies.schema.families import OUTSIDE, add_family, names_schema, outside_schema
from simdp.studies.schema.generator import (
    WHERE,
    Definitions,
    Generator,
    Marker,
    Schema,
    core,
    quantity_schema,
)

DIALECT = "http://json-schema.org/draft-07/schema#"

CATALOGUES = {"device": device.describe, "link": link.describe}
"""What says in a line what a part of the catalogue is, by family."""


class Described(NamedTuple):
    """All that a scenario may hold.

    Attributes
    ----------
    definitions : dict of str to dict
        Schemas by name.
    places : dict of type to str
        Names of the definitions of Specs.
    markers : dict of str to marker
        Families, parts of the catalogue and quantities, by the names of their definitions.
    """

    definitions: Definitions
    places: dict[type[Spec], str]
    markers: dict[str, Marker]


@cache
def described() -> Described:
    """Describe every key of a scenario; nobody may change what it returns."""
    definitions, places, markers = _generated()
    definitions[OUTSIDE] = outside_schema()
    for name, marker in markers.items():
        if isinstance(marker, Quantity):
            definitions[name] = quantity_schema(marker)
        elif isinstance(marker, from_catalogue):
            lines = {part: CATALOGUES[marker.family](part) for part in marker.names()}
            definitions[name] = {"anyOf": names_schema(lines)}
        else:
            add_family(name, marker, definitions, places)
    return Described(definitions, places, markers)


def _generated() -> Described:
    """What pydantic makes of all Specs, found family by family."""
    known: dict[str, Marker] = {}
    while True:
        families = [marker for marker in known.values() if isinstance(marker, one_of)]
        members = (member for each in families for member in each.table.values())
        specs: list[type[Spec]] = [Scenario, *members]
        generator = Generator()
        references, definitions = generator.generate_definitions(
            [(spec, "validation", core(spec)) for spec in specs]
        )
        if generator.markers.keys() == known.keys():
            places = {
                spec: ref["$ref"].removeprefix(WHERE) for (spec, _), ref in references.items()
            }
            return Described({str(name): d for name, d in definitions.items()}, places, known)
        known = generator.markers


def json_schema() -> Schema:
    """Make the JSON Schema of a scenario.

    Returns
    -------
    dict
        Plain data; equal for equal Specs.
    """
    markers, definitions = described().markers, copy.deepcopy(described().definitions)
    for definition in definitions.values():
        if "description" in definition:
            definition["description"] = definition["description"].split("\n")[0]
    definitions |= parts(definitions)
    for name, marker in markers.items():
        if isinstance(marker, one_of):  # what its kind needs may be given by the sweep
            members = [form for form in definitions[name + PART]["anyOf"] if "$ref" in form]
            definitions[name + PART] = {"anyOf": [{"$ref": f"{WHERE}{name}_kind"}, *members]}
    _add_settings(definitions)
    swept = {"required": ["sweep"], "properties": {"sweep": {"minProperties": 1}}}
    return {
        "$schema": DIALECT,
        "title": "Scenario of simdp",
        "description": "What `python -m simdp run` simulates.",
        "if": swept,
        "then": {"$ref": f"{WHERE}Scenario{PART}"},
        "else": {"$ref": f"{WHERE}Scenario"},
        "definitions": dict(sorted(definitions.items())),
    }


def text() -> str:
    """Write the schema as a JSON file."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def _add_settings(definitions: Definitions) -> None:
    """Say what points may set, and sweeps list, by dotted key."""
    keys = settings(definitions)
    inside = "|".join(key for key in Scenario.model_fields if key not in UNDOTTED)
    dotted = {"type": "object", "propertyNames": {"pattern": rf"^({inside})(\.|$)"}}
    definitions["settings"] = {**dotted, "properties": keys}
    lists = {key: {"items": {"$ref": f"{WHERE}settings/properties/{key}"}} for key in keys}
    values = {"": {"type": "array", "minItems": 1}}
    definitions["sweep"] = {**dotted, "properties": lists, "patternProperties": values}
    for name in ("MeasuredPoint", "MeasuredCollective"):
        _refer(definitions, name, "set", "settings")
    _refer(definitions, "Scenario", "sweep", "sweep")


def _refer(definitions: Definitions, name: str, key: str, there: str) -> None:
    """Let a key refer to a definition, beside what is said of it."""
    for each in (name, name + PART):
        if each in definitions:
            said = definitions[name]["properties"][key]
            known = {word: said[word] for word in ("description", "default") if word in said}
            definitions[each]["properties"][key] = {"$ref": WHERE + there, **known}
