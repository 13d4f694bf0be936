"""The reference of a scenario's keys as Markdown pages, from the definitions of its schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from simdp.reports.sections import markdown_table

Schema = Mapping[str, Any]
WHERE = "#/definitions/"
HEAD = tuple((head, False) for head in ("key", "type", "unit", "default", "meaning"))

WORDS = {
    "boolean": "true or false",
    "integer": "whole number",
    "number": "number",
    "string": "text",
}

MADE = "Made from the specs of simdp {version}; [how to read it](index.md)."


class Named(NamedTuple):
    """Names of the definitions of a schema."""

    # by name in ``simdp list``: kinds, each with the name of its definition
    families: Mapping[str, Mapping[str, str]]
    listed: Mapping[str, Mapping[str, str]]  # the lines of ``simdp list``, by family and kind
    # by definition that fields refer to: the family whose page describes it
    pages: Mapping[str, str]
    quantities: Mapping[str, tuple[str, str]]  # by definition: the quantity's dimension and units


def pages(definitions: Mapping[str, Schema], named: Named, version: str) -> dict[str, str]:
    """Write the reference as Markdown, by file name.

    There is a page for the scenario, for each of its keys that holds keys, and for each family.
    ``definitions`` are those of the schema; that of the whole is called Scenario.
    """
    return _Writer(definitions, named, version).pages()


class _Writer:
    def __init__(self, definitions: Mapping[str, Schema], named: Named, version: str) -> None:
        self.definitions, self.named = definitions, named
        self.made = MADE.format(version=version)
        self.sections: dict[str, list[tuple[str, str]]] = {"scenario": [("", "Scenario")]}
        """Paths of keys and the definitions that tell of what is inside, by page."""
        for key, schema in definitions["Scenario"]["properties"].items():
            for place in self._holders(schema):
                self.sections[key] = list(self._walk(key, place, {"Scenario"}))
        self.homes = {
            place: f"{page}.md#{_slug(path)}" if path else f"{page}.md"
            for page, sections in reversed(self.sections.items())
            for path, place in reversed(sections)
        }
        for family, kinds in named.families.items():
            for kind, place in kinds.items():
                self.homes[place] = f"{family}.md#{_slug(kind)}"
                inner = self.definitions[place]["properties"].items()
                for key, schema in inner:
                    for nested in self._holders(schema):
                        for path, there in self._walk(f"{kind}.{key}", nested, {*self.homes}):
                            self.homes[there] = f"{family}.md#{_slug(path)}"

    def pages(self) -> dict[str, str]:
        """Write all pages, by file name."""
        pages = {f"{page}.md": self._keys_page(page) for page in self.sections}
        return pages | {f"{family}.md": self._family_page(family) for family in self.named.listed}

    def _holders(self, schema: Any) -> list[str]:
        """List the definitions with keys of their own, outside families, that a key refers to."""
        members = {place for kinds in self.named.families.values() for place in kinds.values()}
        places = [ref.removeprefix(WHERE) for ref in _references(schema)]
        return [p for p in places if "properties" in self.definitions[p] and p not in members]

    def _walk(self, path: str, place: str, known: set[str]) -> Iterator[tuple[str, str]]:
        """Yield the definitions inside one, each at its first path."""
        if place in known:
            return
        known.add(place)
        yield path, place
        for key, schema in self.definitions[place]["properties"].items():
            for inner in self._holders(schema):
                yield from self._walk(f"{path}.{key}", inner, known)

    def _keys_page(self, page: str) -> str:
        title = f"`{page}`" if page != "scenario" else "Scenario"
        parts = [f"# {title}\n", self.made + "\n"]
        for path, place in self.sections[page]:
            if self.homes[place] != (f"{page}.md#{_slug(path)}" if path else f"{page}.md"):
                parts.append(f"## `{path}`\n\nAs [there]({self.homes[place]}).\n")
            else:
                parts += self._section(f"## `{path}`" if path else "", place)
        return "\n".join(parts)

    def _family_page(self, family: str) -> str:
        kinds, listed = self.named.families.get(family, {}), self.named.listed[family]
        rows = [
            [f"[`{kind}`](#{_slug(kind)})" if kind in kinds else f"`{kind}`", self._meaning(line)]
            for kind, line in listed.items()
        ]
        parts = [f"# {family.replace('_', ' ').capitalize()}\n", self.made + "\n"]
        parts.append(markdown_table((("name", False), ("what it is", False)), rows))
        for kind, place in kinds.items():
            parts += self._section(f"## `{kind}`", place)
            for key, schema in self.definitions[place]["properties"].items():
                for nested in self._holders(schema):
                    for path, there in self._walk(f"{kind}.{key}", nested, set()):
                        if self.homes[there] == f"{family}.md#{_slug(path)}":
                            parts += self._section(f"### `{path}`", there)
        return "\n".join(parts)

    def _section(self, head: str, place: str) -> list[str]:
        """Write a definition's description and its keys."""
        definition = self.definitions[place]
        parts = [f"{head}\n"] if head else []
        parts.append(self._meaning(definition["description"]) + "\n")
        # Last in anyOf: keys that are required unless another key implies them.
        needs = (definition, definition.get("then", {}), definition.get("anyOf", [{}])[-1])
        required = [key for part in needs for key in part.get("required", ())]
        rows = [
            self._row(key, schema, key in required)
            for key, schema in definition["properties"].items()
            if key != "kind"
        ]
        forms = definition["properties"].get("kind", {}).get("anyOf", ())
        names = [form["const"] for form in forms if "const" in form]
        if len(names) > 1:
            parts.append(f"Also called {', '.join(f'`{name}`' for name in names[1:])}.\n")
        return [*parts, markdown_table(HEAD, rows)] if rows else parts

    def _row(self, key: str, schema: Schema, required: bool) -> list[str]:
        forms = [form for form in schema.get("anyOf", [schema]) if form.get("type") != "null"]
        types = list(dict.fromkeys(map(self._type, forms)))
        places = [ref.removeprefix(WHERE) for ref in _references(forms)]
        known = [
            self.named.quantities[place][1] for place in places if place in self.named.quantities
        ]
        units = list(dict.fromkeys(filter(None, known)))
        units += ["%"] if schema.get("title") == "share" else []
        default = "**required**" if required else _shown(schema.get("default"))
        meaning = self._meaning(schema.get("description", ""))
        return [f"`{key}`", " or ".join(types), " or ".join(units), default, meaning]

    def _type(self, schema: Schema) -> str:
        """Write a value's type in words."""
        if "$ref" in schema:
            return self._reference(schema["$ref"].removeprefix(WHERE))
        if "title" in schema:
            return str(schema["title"])
        if "const" in schema or "enum" in schema:
            words = schema.get("enum", [schema.get("const")])
            return ", ".join(f"`{_plain(word)}`" for word in words)
        if "anyOf" in schema and "pattern" in schema["anyOf"][-1]:
            return "name of [machines](machines.md), or a file"
        if "anyOf" in schema:
            return " or ".join(dict.fromkeys(self._type(form) for form in schema["anyOf"]))
        kind = schema.get("type")
        if kind == "array":
            items = schema.get("items", {})
            several = items if isinstance(items, list) else [items]
            return f"list of {', '.join(self._type(item) for item in several)}"
        if kind == "object":
            inner = schema.get("additionalProperties", {})
            return f"mapping to {self._type(inner)}" if isinstance(inner, Mapping) else "mapping"
        return WORDS.get(str(kind), "anything") + _bounds(schema)

    def _reference(self, place: str) -> str:
        if place in self.named.quantities:
            dimension, _ = self.named.quantities[place]
            return dimension
        if place in self.named.pages:
            family = self.named.pages[place]
            return f"[{place.replace('_', ' ')}]({family}.md)"
        return f"[mapping]({self.homes[place]})"

    def _meaning(self, text: str) -> str:
        """Link the names in a docstring's text that have a place of their own."""

        def linked(name: re.Match[str]) -> str:
            home = self.homes.get(name[1])
            return f"[{name[0]}]({home})" if home else name[0]

        return re.sub(r"`(\w+)`", linked, text)


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if "$ref" in value:
            yield value["$ref"]
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        yield from _references(inner)


def _bounds(schema: Schema) -> str:
    """Write the bounds of a number."""
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {_number(schema[key])}" for key, sign in signs.items() if key in schema]
    return f", {', '.join(bounds)}" if bounds else ""


def _number(value: float) -> str:
    """Write a bound; large powers of two as such."""
    if isinstance(value, int) and value > 4096 and not value & (value - 1):
        return f"2^{value.bit_length() - 1}"
    return f"{value:,}" if isinstance(value, int) and value < 10**6 else f"{value:g}"


def _plain(value: Any) -> str:
    """Write a value as in YAML."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shown(default: Any) -> str:
    if default is None:
        return ""
    text = _plain(default)
    return f"`{text}`" if text else "empty"


def _slug(title: str) -> str:
    """Make the anchor that Python-Markdown gives a heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())
