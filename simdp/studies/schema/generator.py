"""What pydantic's generator of JSON Schemas is told of simdp's types of fields."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema, core_schema

from simdp.spec import Quantity, Spec, from_catalogue, one_of
from simdp.studies.schema.docstrings import about, meanings
from simdp.units import DIMENSIONS, quantity_pattern

Schema = dict[str, Any]
Definitions = dict[str, Schema]

WHERE = "#/definitions/"

Marker = one_of | from_catalogue | Quantity


class Generator(GenerateJsonSchema):
    """Schemas of Specs with what their docstrings say, and defaults as a file would give them.

    Members of a family may hold each other, and every quantity of a dimension is alike, so that
    fields refer to definitions of these, which are not made here.

    Attributes
    ----------
    markers : dict of str to marker
        What fields refer to, by the name of its definition.
    """

    def __init__(self, by_alias: bool = True, ref_template: str = WHERE + "{model}") -> None:
        super().__init__(by_alias, ref_template)
        self.markers: dict[str, Marker] = {}

    def function_plain_schema(self, schema: core_schema.PlainValidatorFunctionSchema) -> Schema:
        """A member of a family, or a quantity: their validators are methods of their markers."""
        marker = _marker(schema)
        if isinstance(marker, one_of):
            return self._refer(marker.family, marker)
        if isinstance(marker, Quantity):
            return self._refer(quantity_name(marker), marker)
        return super().function_plain_schema(schema)

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> Schema:
        """A part of the catalogue, by name or written out."""
        marker = _marker(schema)
        found = super().function_before_schema(schema)
        if isinstance(marker, from_catalogue):
            return {"anyOf": [self._refer(f"{marker.family}_name", marker), found]}
        return found

    def tuple_schema(self, schema: core_schema.TupleSchema) -> Schema:
        """Tuples of a fixed length as drafts up to 7 write them, which editors know."""
        found = super().tuple_schema(schema)
        if "prefixItems" in found:
            found["items"] = found.pop("prefixItems")
        return found

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> Schema:
        """Defaults come with what is said of a key, below."""
        return self.generate_inner(schema["schema"])

    def model_schema(self, schema: core_schema.ModelSchema) -> Schema:
        """Add what docstrings say, and defaults as they are written."""
        found, spec = super().model_schema(schema), schema["cls"]
        said, defaults = meanings(spec), defaults_of(spec)
        for key, inner in found["properties"].items():
            inner |= {"description": said[key]} if key in said else {}
            inner |= {"default": defaults[key]} if key in defaults else {}
        found.pop("title", None)
        return {**found, "description": about(spec)}

    def get_schema_from_definitions(self, json_ref: Any) -> Schema | None:
        """None for what is not made here."""
        if json_ref.removeprefix(WHERE) in self.markers:
            return None
        return super().get_schema_from_definitions(json_ref)

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Keys are titles enough."""
        return False

    def _refer(self, name: str, marker: Marker) -> Schema:
        known = self.markers.setdefault(name, marker)
        assert same(known, marker), f"two fields call different things {name}"
        return {"$ref": WHERE + name}


def _marker(schema: Any) -> object:
    """Whose method validates a field."""
    return getattr(schema["function"]["function"], "__self__", None)


def same(one: Marker, other: Marker) -> bool:
    """Whether two fields take the same."""
    if isinstance(one, one_of) and isinstance(other, one_of):
        return one.table is other.table and one.default == other.default
    return vars(one) == vars(other) or isinstance(one, from_catalogue)


def quantity_name(quantity: Quantity) -> str:
    """Name of the definition of a quantity, such as ``"positive time"``."""
    return f"{'positive ' * quantity.exclusive}{quantity.dimension}".replace(" ", "_")


def quantity_schema(quantity: Quantity) -> Schema:
    """What a quantity looks like in a file."""
    dimension = DIMENSIONS[quantity.dimension]
    return {
        "type": "string",
        "pattern": quantity_pattern(quantity.dimension, zero=not quantity.exclusive),
        "patternErrorMessage": f'Write a {quantity.dimension}, for example "{dimension.example}".',
    }


def defaults_of(spec: type[Spec]) -> dict[str, Any]:
    """Defaults of a Spec's keys, as a file would give them; without those that others decide."""
    found: dict[str, Any] = {}
    for key, field in spec.model_fields.items():
        factory: Any = field.default_factory
        default = field.default if factory is None else factory()
        if isinstance(default, Spec):
            found[key] = shortened(default)
        elif default is None or isinstance(default, bool | str):
            found[key] = default
        elif not field.is_required() and type(default) is not object:
            made = spec.model_construct(**{key: default})
            found[key] = made.model_dump(mode="json", include={key})[key]
    return {key: value for key, value in found.items() if value != {} and key != "kind"}


def shortened(value: Spec) -> Any:
    """A Spec as short as a file may give it: a bare kind where nothing else is unlike usual."""
    usual = type(value).model_fields
    unlike = [key for key, inner in value if inner != usual[key].default and inner is not None]
    written = value.model_dump(mode="json", include={"kind", *unlike})
    return written["kind"] if list(written) == ["kind"] else written


def core(spec: type[Spec]) -> CoreSchema:
    """The core schema of a Spec, which is built when it is first asked for."""
    spec.model_rebuild()
    return spec.__pydantic_core_schema__
