"""Docstrings: every key of a scenario has a meaning, and none tells of a key that is not there."""

from pathlib import Path

from simdp.scenario.root import Scenario
from simdp.spec import Spec
from simdp.studies.schema import about, described, meanings, own_keys


class Base(Spec):
    """First line, of ``both``.

    Second
    line.

    Attributes
    ----------
    wide, high : int
        Of the ``thing``,
        in pixels.

    Notes
    -----
    Not for readers of the reference.
    """

    wide: int
    high: int


class Member(Base):
    """A member.

    Attributes
    ----------
    high : int
        Its own.
    """


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
    assert meanings(Base) == dict.fromkeys(["wide", "high"], "Of the `thing`, in pixels.")
    assert own_keys(Member) == ["high"]


def test_a_member_says_only_what_differs_from_its_base():
    assert meanings(Member) == {"wide": "Of the `thing`, in pixels.", "high": "Its own."}


def test_every_key_of_a_scenario_has_a_meaning():
    assert len(members()) > 180
    missing = [
        f"{spec.__module__}.{spec.__name__}.{key}"
        for spec in members()
        for key in spec.model_fields
        if key != "kind" and not meanings(spec).get(key)
    ]
    assert missing == [], "say in the section Attributes of the class what these keys mean"


def test_no_docstring_tells_of_a_key_that_is_not_there():
    specs = {base for spec in members() for base in spec.__mro__ if issubclass(base, Spec)}
    wrong = [
        f"{spec.__module__}.{spec.__name__}: {key}"
        for spec in specs
        for key in own_keys(spec)
        if not any(issubclass(other, spec) and key in other.model_fields for other in specs)
    ]
    assert wrong == []


def test_every_spec_of_a_scenario_says_what_it_is():
    assert [spec.__name__ for spec in members() if not about(spec)] == []


def test_the_places_of_specs_are_files_of_simdp():
    root = Path(__file__).parents[2] / "simdp"
    assert root.is_dir()
    assert all(spec.__module__.startswith("simdp.") for spec in members())
