"""JSON schema of scenarios, and the reference pages made of it.

pydantic makes it from the Specs (`SchemaGenerator`) with their docstrings; families add their kinds
(`add_family`), and sweeps their dotted keys (`settings`). It accepts all that ``check`` accepts;
constraints between keys, and on files, are left to ``check``. Members from outside are known as
``module:Class`` only, not by names that installed packages offer. It keeps to draft 7, which
editors support.

A key may be given by the sweep only, so that a scenario with a sweep uses copies of the definitions
without required keys, called ``..._part``.
"""

from __future__ import annotations

import ast
import copy
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from pydantic.json_schema import GenerateJsonSchema, JsonRef
from pydantic_core import CoreSchema, core_schema

from simdp.cluster.hardware import describe_device, describe_link
from simdp.family import WRITTEN_OUT
from simdp.files import Catalogue
from simdp.reports import reference_page
from simdp.scenario.overrides import MERGED
from simdp.scenario.root import Scenario
from simdp.spec import Quantity, Spec, from_catalogue, one_of
from simdp.studies.families import families, tables
from simdp.studies.fits import describe
from simdp.units import DIMENSIONS, quantity_pattern
from simdp.version import __version__
from simdp.workload.compute import describe_host

# Docstrings ---------------------------------------------------------------------------------------

_HEAD = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.MULTILINE)
"""An underlined section heading of a NumPy docstring."""


def about(spec: type[Spec]) -> str:
    """A Spec's docstring up to the first section, a line per paragraph."""
    text = _sections(spec)[""]
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n")).replace("``", "`")


def meanings(spec: type[Spec]) -> dict[str, str]:
    """Meaning of each key: the strings below the fields of a Spec and its bases, nearest first.

    What a class says of inherited fields is in its section Attributes; a base may describe keys
    there that only some of its members have.
    """
    meaning_of: dict[str, str] = {}
    for base in reversed(spec.__mro__):
        if issubclass(base, Spec):
            meaning_of |= own_meanings(base)
    return meaning_of


def own_meanings(spec: type[Spec]) -> dict[str, str]:
    """Meanings that a Spec's own text gives."""
    below = _classes(spec.__module__).get(spec.__qualname__, {})
    return _inherited(spec) | {key: text for key, text in below.items() if key in spec.model_fields}


@cache
def _classes(module: str) -> dict[str, dict[str, str]]:
    """Strings below the fields of a module's classes; none where its text cannot be read."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    return {
        node.name: dict(_described_fields(node))
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


def _described_fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(node.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, " ".join(text.split()).replace("``", "`")


def _sections(spec: type[Spec]) -> dict[str, str]:
    """A docstring's text by section; the text before the first has the name ``""``."""
    text = inspect.cleandoc(spec.__dict__.get("__doc__") or "")
    heads = list(_HEAD.finditer(text))
    ends = [*heads, None]
    sections = {"": text[: heads[0].start() if heads else None].strip()}
    for head, after in pairwise(ends):
        assert head is not None, "only the last one is None"
        sections[head[1]] = text[head.end() : after.start() if after else None].strip("\n")
    return sections


def _inherited(spec: type[Spec]) -> dict[str, str]:
    """Parse the section Attributes: ``names : type``, followed by an indented meaning."""
    meaning_of: dict[str, str] = {}
    names: list[str] = []
    for line in _sections(spec).get("Attributes", "").splitlines():
        if line and not line.startswith(" "):
            names = [name.strip() for name in line.split(" : ")[0].split(",")]
            meaning_of |= dict.fromkeys(names, "")
        else:
            text_line = line.strip().replace("``", "`")
            meaning_of |= {name: f"{meaning_of[name]} {text_line}".strip() for name in names}
    return meaning_of


# Schemas of Specs ---------------------------------------------------------------------------------

Schema = dict[str, Any]
Definitions = dict[str, Schema]

WHERE = "#/definitions/"

Marker = one_of | from_catalogue | Quantity


class SchemaGenerator(GenerateJsonSchema):
    """Makes schemas of Specs with the text of their docstrings, and defaults as written in a file.

    Members of a family may hold each other, and quantities of one dimension share a schema: fields
    refer to definitions, which are made elsewhere from ``markers``, by name.
    """

    def __init__(self, by_alias: bool = True, ref_template: str = WHERE + "{model}") -> None:
        super().__init__(by_alias, ref_template)
        self.markers: dict[str, Marker] = {}

    def function_plain_schema(self, schema: core_schema.PlainValidatorFunctionSchema) -> Schema:
        """Refer to a family or a quantity: their validators are methods of their markers."""
        marker = _marker(schema)
        if isinstance(marker, one_of):
            return self._refer(marker.family, marker)
        if isinstance(marker, Quantity):
            return self._refer(quantity_name(marker), marker)
        return super().function_plain_schema(schema)

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> Schema:
        """Accept a part of the catalogue by name or written out."""
        marker = _marker(schema)
        inner = super().function_before_schema(schema)
        if isinstance(marker, from_catalogue):
            return {"anyOf": [self._refer(f"{marker.family}_name", marker), inner]}
        return inner

    def tuple_schema(self, schema: core_schema.TupleSchema) -> Schema:
        """Write tuples of a fixed length as in draft 7."""
        schema_of_tuple = super().tuple_schema(schema)
        if "prefixItems" in schema_of_tuple:
            schema_of_tuple["items"] = schema_of_tuple.pop("prefixItems")
        return schema_of_tuple

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> Schema:
        """Leave the default out: `model_schema` adds it."""
        return self.generate_inner(schema["schema"])

    def model_schema(self, schema: core_schema.ModelSchema) -> Schema:
        """Add meanings from docstrings, and defaults as written in a file."""
        described, spec = super().model_schema(schema), schema["cls"]
        described_keys, defaults = meanings(spec), defaults_of(spec)
        for key, inner in described["properties"].items():
            inner |= {"description": described_keys[key]} if key in described_keys else {}
            inner |= {"default": defaults[key]} if key in defaults else {}
        described.pop("title", None)
        return {**described, "description": about(spec)}

    def get_schema_from_definitions(self, json_ref: JsonRef) -> Schema | None:
        """Return None for definitions that are made elsewhere."""
        if json_ref.removeprefix(WHERE) in self.markers:
            return None
        return super().get_schema_from_definitions(json_ref)

    def field_title_should_be_set(self, schema: object) -> bool:
        """Leave titles out: the keys suffice."""
        return False

    def _refer(self, name: str, marker: Marker) -> Schema:
        known = self.markers.setdefault(name, marker)
        assert same(known, marker), f"two fields call different things {name}"
        return {"$ref": WHERE + name}


def _marker(
    schema: core_schema.PlainValidatorFunctionSchema | core_schema.BeforeValidatorFunctionSchema,
) -> object:
    """The object with the method that validates a field."""
    return getattr(schema["function"]["function"], "__self__", None)


def same(marker: Marker, other: Marker) -> bool:
    """Whether two fields accept the same values."""
    if isinstance(marker, one_of) and isinstance(other, one_of):
        return marker.table is other.table and marker.default == other.default
    return vars(marker) == vars(other) or isinstance(marker, from_catalogue)


def quantity_name(quantity: Quantity) -> str:
    """Name the definition of a quantity, such as ``"positive time"``."""
    return f"{'positive ' * quantity.exclusive}{quantity.dimension}".replace(" ", "_")


def quantity_schema(quantity: Quantity) -> Schema:
    """Schema of a quantity, as written in a file."""
    dimension = DIMENSIONS[quantity.dimension]
    return {
        "type": "string",
        "pattern": quantity_pattern(quantity.dimension, zero=not quantity.exclusive),
        "patternErrorMessage": f'Write a {quantity.dimension}, for example "{dimension.example}".',
    }


def defaults_of(spec: type[Spec]) -> dict[str, Any]:
    """Defaults of a Spec's keys as written in a file, without computed ones."""
    defaults: dict[str, Any] = {}
    for key, field in spec.model_fields.items():
        factory: Any = field.default_factory
        default = field.default if factory is None else factory()
        if isinstance(default, Spec):
            defaults[key] = shortened(default)
        elif default is None or isinstance(default, bool | str):
            defaults[key] = default
        elif not field.is_required() and type(default) is not object:
            made = spec.model_construct(**{key: default})
            defaults[key] = made.model_dump(mode="json", include={key})[key]
    return {key: value for key, value in defaults.items() if value != {} and key != "kind"}


def shortened(value: Spec) -> Any:
    """Write a Spec as short as possible: only the kind where all else is default."""
    usual = type(value).model_fields
    unlike = [key for key, inner in value if inner != usual[key].default and inner is not None]
    written = value.model_dump(mode="json", include={"kind", *unlike})
    return written["kind"] if list(written) == ["kind"] else written


def core(spec: type[Spec]) -> CoreSchema:
    """Core schema of a Spec, which is built on demand."""
    spec.model_rebuild()
    return spec.__pydantic_core_schema__


# Families -----------------------------------------------------------------------------------------

BETWEEN = "[-_ ]*"  # characters allowed between the letters of a kind: see `one_of`
OUTSIDE = "outside_member"  # definition of a member from outside, of any family, with unknown keys

_CLASS: Schema = {
    "type": "string",
    "pattern": f"^{WRITTEN_OUT}$",
    "description": "A class of your own: module:Class.",
}


def first_line(spec: type[Spec]) -> str:
    """First paragraph of a Spec's docstring."""
    return about(spec).split("\n")[0]


def names_schema(lines: Mapping[str, str]) -> list[Schema]:
    """Constants, each with a description."""
    return [{"const": name, "description": line} for name, line in lines.items()]


def kinds_of(marker: one_of) -> dict[str, str]:
    """Every kind and other name of a family, with its description."""
    kinds = {kind: first_line(member) for kind, member in sorted(marker.table.items())}
    for name, preset in sorted(marker.presets.items()):
        real = isinstance(marker.presets, Catalogue)
        kinds[name] = describe(name) if real else f"Another name of {preset['kind']}."
    return kinds


def add_family(
    name: str, marker: one_of, definitions: Definitions, places: Mapping[type[Spec], str]
) -> None:
    """Add a family and its kinds to the definitions, and the kinds to those of its members.

    Changes ``definitions``, which include those of the members, named in ``places``.
    """
    kinds, needs = kinds_of(marker), dict[str, list[str]]()
    kindless = name in MERGED  # a machine may give it
    for kind, member in marker.table.items():
        names = [
            kind,
            *(other for other in marker.presets if marker.presets[other]["kind"] == kind),
        ]
        lines = {spelling: kinds[spelling] for spelling in names}
        needs[kind] = _add_kinds(
            lines, definitions[places[member]], kindless or marker.by_key or kind == marker.default
        )
    bare = {kind: line for kind, line in kinds.items() if not needs.get(kind)}
    members = [{"$ref": WHERE + places[member]} for _, member in sorted(marker.table.items())]
    definitions[f"{name}_kind"] = {"anyOf": [*_words(kinds), _CLASS]}
    definitions[name] = {"anyOf": [*_words(bare), *members, _CLASS, {"$ref": WHERE + OUTSIDE}]}


def outside_schema() -> Schema:
    """Schema of a member from outside, written out."""
    return {"type": "object", "properties": {"kind": _CLASS}, "required": ["kind"]}


def _add_kinds(lines: Mapping[str, str], member: Schema, usual: bool) -> list[str]:
    """Add a kind's spellings to its member's definition; return the keys that the member requires.

    ``lines`` has the kind and its other names, with descriptions; with ``usual`` the kind may be
    left out.
    """
    kind, *others = lines
    own = {key: inner for key, inner in member["properties"].items() if key != "kind"}
    member["properties"] = {"kind": {"anyOf": [*names_schema(lines), _spelled(lines)]}, **own}
    keys = [key for key in member.pop("required", []) if key != "kind"]
    if keys and others:  # another name may imply them
        member["if"] = {"properties": {"kind": _spelled([kind])}}
        member["then"] = {"required": keys}
    required = [] if usual else ["kind"]
    required += [] if others else keys
    member |= {"required": required} if required else {}
    return keys


def _words(lines: Mapping[str, str]) -> list[Schema]:
    """Kinds as words; ``none`` also as YAML's null and false."""
    nothing = [{"enum": [None, False], "description": lines["none"]}] if "none" in lines else []
    return [*names_schema(lines), _spelled(lines), *nothing] if lines else []


def _spelled(kinds: Iterable[str]) -> dict[str, Any]:
    """Pattern of all spellings of some kinds."""
    ways = [
        BETWEEN.join(f"[{c.lower()}{c.upper()}]" if c.isalpha() else re.escape(c) for c in letters)
        for letters in (re.sub(BETWEEN, "", kind) for kind in kinds)
    ]
    return {"type": "string", "pattern": f"^{BETWEEN}({'|'.join(ways)}){BETWEEN}$"}


# Dotted keys --------------------------------------------------------------------------------------

PART = "_part"

UNDOTTED = ("name", "sweep", "measured")  # keys of a scenario without dotted keys inside


def parts(definitions: Definitions) -> Definitions:
    """Copy the definitions that require keys, or refer to such, without the requirement."""
    needy = {name for name, definition in definitions.items() if _requires(definition)} - {OUTSIDE}
    while more := {n for n, d in definitions.items() if needy & {*references(d)}} - needy:
        needy |= more
    return {name + PART: _copied(name, definitions[name], needy) for name in sorted(needy)}


def _requires(value: object) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (isinstance(value, dict) and "required" in value) or any(map(_requires, inner))


def references(value: object) -> Iterator[str]:
    """Names of the definitions that a schema refers to."""
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"].removeprefix(WHERE)
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        yield from references(inner)


def _copied(name: str, definition: Schema, needy: Iterable[str]) -> Schema:
    """A definition without required keys; properties that stay equal refer to the original."""
    made: Schema = _without(definition, needy)
    for key, inner in definition.get("properties", {}).items():
        if made["properties"][key] == inner:
            made["properties"][key] = {"$ref": f"{WHERE}{name}/properties/{key}"}
    return made


def _without(value: object, needy: Iterable[str]) -> Any:
    if isinstance(value, list):
        return [_without(inner, needy) for inner in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _without(inner, needy) for key, inner in value.items() if key != "required"}
    if kept.get("$ref", "").removeprefix(WHERE) in needy:
        kept["$ref"] += PART
    return kept


def settings(definitions: Definitions) -> dict[str, Schema]:
    """Schemas by dotted key, including those of the members of families."""
    forms_of: dict[str, list[Schema]] = {}
    for key, schema in _keys(definitions, "Scenario" + PART):
        known = [_resolved(definitions, other) for other in forms_of.setdefault(key, [])]
        if key.split(".")[0] not in UNDOTTED and _resolved(definitions, schema) not in known:
            forms_of[key].append(schema)
    forms = {key: same for key, same in forms_of.items() if same}
    return {key: same[0] if len(same) == 1 else {"anyOf": same} for key, same in forms.items()}


def _resolved(definitions: Definitions, schema: Schema) -> Schema:
    """Resolve a reference to a key of a definition; return other schemas unchanged."""
    name, _, key = schema.get("$ref", "").removeprefix(WHERE).partition("/properties/")
    return _resolved(definitions, definitions[name]["properties"][key]) if key else schema


def _keys(
    definitions: Definitions, name: str, lead: str = "", member: bool = False
) -> Iterator[tuple[str, Schema]]:
    """Yield the dotted keys of a definition, and of those that it refers to."""
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
    """Yield the keys of a definition that a key refers to: a Spec, or the members of a family."""
    schema = definitions.get(name, {})
    if "properties" in schema:
        yield from _keys(definitions, name, lead, member)
    kinds = f"{name.removesuffix(PART)}_kind"
    if kinds in definitions and not member:
        yield f"{lead}kind", {"$ref": WHERE + kinds}
        for member_schema in schema["anyOf"]:
            there = member_schema.get("$ref", "").removeprefix(WHERE)
            if there not in ("", kinds):
                yield from _keys(definitions, there, lead, True)


# Schema -------------------------------------------------------------------------------------------

DIALECT = "http://json-schema.org/draft-07/schema#"

CATALOGUES = {"device": describe_device, "link": describe_link, "host": describe_host}
"""One-line descriptions of parts of the catalogue, by family."""


class Described(NamedTuple):
    """Schemas of a scenario by name, names of the Specs' definitions, and markers of all others."""

    definitions: Definitions
    places: dict[type[Spec], str]
    markers: dict[str, Marker]


@cache
def described() -> Described:
    """Describe every key of a scenario; cached, so callers must not change the result."""
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
    """Let pydantic describe all Specs, until it finds no new family."""
    known: dict[str, Marker] = {}
    while True:
        families = [marker for marker in known.values() if isinstance(marker, one_of)]
        members = (member for family in families for member in family.table.values())
        specs: list[type[Spec]] = [Scenario, *members]
        generator = SchemaGenerator()
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
    """Make the JSON Schema of a scenario as plain data; equal for equal Specs."""
    markers, definitions = described().markers, copy.deepcopy(described().definitions)
    for definition in definitions.values():
        if "description" in definition:
            definition["description"] = definition["description"].split("\n")[0]
    definitions |= parts(definitions)
    for name, marker in markers.items():
        if isinstance(marker, one_of):  # the sweep may give the keys that its kind requires
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
    """Add the dotted keys that points may set and sweeps may list."""
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
    """Replace a key's schema by a reference, keeping its description and default."""
    for definition in (name, name + PART):
        if definition in definitions:
            schema = definitions[name]["properties"][key]
            known = {word: schema[word] for word in ("description", "default") if word in schema}
            definitions[definition]["properties"][key] = {"$ref": WHERE + there, **known}


def reference() -> dict[str, str]:
    """Write the reference pages: Markdown by file name, without the hand-written ``index.md``."""
    known = described()
    members = {
        table.name: {kind: known.places[member] for kind, member in sorted(table.items())}
        for table in tables()
    }
    named, quantities = dict[str, str](), dict[str, tuple[str, str]]()
    for name, marker in known.markers.items():
        if isinstance(marker, one_of):
            named[name] = next(table.name for table in tables() if table is marker.table)
        elif isinstance(marker, from_catalogue):
            named[name] = f"{marker.family}s"
        elif isinstance(marker, Quantity):
            units = ", ".join(DIMENSIONS[marker.dimension].printed)
            quantities[name] = marker.dimension + ", > 0" * marker.exclusive, units
    calls = reference_page.Named(members, families(), named, quantities)
    return reference_page.pages(known.definitions, calls, __version__)
