"""What the docstring of a Spec says: of itself, and of each of its keys."""

from __future__ import annotations

import re
from inspect import cleandoc
from itertools import pairwise

from simdp.spec import Spec

_HEAD = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.MULTILINE)
"""The head of a section, underlined, as in NumPy's docstrings."""


def about(spec: type[Spec]) -> str:
    """What a Spec is: its docstring up to the first section, a line for each paragraph."""
    text = _sections(spec)[""]
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n")).replace("``", "`")


def meanings(spec: type[Spec]) -> dict[str, str]:
    """What each key means, from the sections Attributes of a Spec and of its bases, nearest first.

    A base may tell of keys that only some of its members have.
    """
    found: dict[str, str] = {}
    for base in reversed(spec.__mro__):
        if issubclass(base, Spec):
            found |= _attributes(base)
    return found


def own_keys(spec: type[Spec]) -> list[str]:
    """Keys that the docstring of a Spec itself tells of."""
    return list(_attributes(spec))


def _sections(spec: type[Spec]) -> dict[str, str]:
    """Text by section; what stands before the first is called nothing."""
    text = cleandoc(spec.__dict__.get("__doc__") or "")
    heads = list(_HEAD.finditer(text))
    ends = [*heads, None]
    found = {"": text[: heads[0].start() if heads else None].strip()}
    for head, after in pairwise(ends):
        assert head is not None, "only the last one is None"
        found[head[1]] = text[head.end() : after.start() if after else None].strip("\n")
    return found


def _attributes(spec: type[Spec]) -> dict[str, str]:
    """The section Attributes: ``names : type``, and indented what they mean."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in _sections(spec).get("Attributes", "").splitlines():
        if line and not line.startswith(" "):
            names = [name.strip() for name in line.split(" : ")[0].split(",")]
            found |= dict.fromkeys(names, "")
        else:
            said = line.strip().replace("``", "`")
            found |= {name: f"{found[name]} {said}".strip() for name in names}
    return found
