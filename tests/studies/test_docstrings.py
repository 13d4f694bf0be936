"""Docstrings: every key of a scenario has a meaning, and none tells of a key that is not there."""

from pathlib import Path

from simdp.scenario.root import Scenario
from simdp.spec import Spec
from simdp.studies.schema import about, described, meanings, own_meanings


class Base(Spec):
    """First line, of ``both``.

    Second
    line.

    Notes
    -----
    Not for readers of the reference.
    """

    wide: int
    """Of the ``thing``,
    in pixels."""
    high: int
    """From the ground."""


class Member(Base):
    """A member.

    Attributes
    ----------
    high : int
        Its own.
    """

    deep: int = 0
    """Of a field
    of the member."""


def reachable():
    """Every Spec that a scenario may hold: members of families, and what holds keys inside them."""
    known, waiting = set(), [Scenario, *described().places]
    while waiting:
        spec = waiting.pop()
        if spec not in known:
            known.add(spec)
            waiting += [found for field in spec.model_fields.values() for found in specs_in(field)]
    return known


def specs_in(field):
    seen, waiting = [], [field.annotation]
    while waiting:
        found = waiting.pop()
        waiting += getattr(found, "__args__", ())
        if isinstance(found, type) and issubclass(found, Spec) and found.__doc__:
            seen.append(found)
    return seen


def members():
    """Those of them that a file can name: bases of families stand for their members."""
    families = {base for spec in described().places for base in spec.__mro__[1:]}
    return sorted(reachable() - families, key=lambda spec: spec.__qualname__)


def test_a_docstring_is_read_by_its_sections():
    assert about(Base) == "First line, of `both`.\n\nSecond line."
    assert meanings(Base) == {"wide": "Of the `thing`, in pixels.", "high": "From the ground."}


def test_a_member_says_only_what_differs_from_its_base():
    assert own_meanings(Member) == {"high": "Its own.", "deep": "Of a field of the member."}
    assert meanings(Member) == {"wide": "Of the `thing`, in pixels.", **own_meanings(Member)}


def test_a_class_whose_text_cannot_be_read_has_the_meanings_of_its_section():
    made = type("Made", (Base,), {"__module__": "builtins", "__doc__": Member.__doc__})
    assert own_meanings(made) == {"high": "Its own."}


def test_every_key_of_a_scenario_has_a_meaning():
    assert len(members()) > 180
    missing = [
        f"{spec.__module__}.{spec.__name__}.{key}"
        for spec in members()
        for key in spec.model_fields
        if key != "kind" and not meanings(spec).get(key)
    ]
    assert missing == [], "say what these keys mean in a string below each"


def test_no_docstring_tells_of_a_key_that_is_not_there():
    specs = {base for spec in members() for base in spec.__mro__ if issubclass(base, Spec)}
    wrong = [
        f"{spec.__module__}.{spec.__name__}: {key}"
        for spec in specs
        for key in own_meanings(spec)
        if not any(issubclass(other, spec) and key in other.model_fields for other in specs)
    ]
    assert wrong == []


def test_every_spec_of_a_scenario_says_what_it_is():
    assert [spec.__name__ for spec in members() if not about(spec)] == []


def test_the_places_of_specs_are_files_of_simdp():
    root = Path(__file__).parents[2] / "simdp"
    assert root.is_dir()
    assert all(spec.__module__.startswith("simdp.") for spec in members())
