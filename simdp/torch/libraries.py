"""Libraries: what accelerate, and Hugging Face's Trainer on it, keep once for a whole process."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from simdp.torch.parts import Part
from simdp.torch.ranks import Rank

SHARED = ("PartialState", "AcceleratorState", "GradientState")
"""Classes of ``accelerate.state`` whose objects are all one, by a dictionary that they share."""

NAME = "libraries"


class Libraries(Part):
    """Each rank's content of these dictionaries; the library may be imported at any time."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        before, locked = _contents(), functools.cached_property.__get__
        functools.cached_property.__get__ = _unlocked  # type: ignore[method-assign]
        try:
            yield
        finally:
            functools.cached_property.__get__ = locked  # type: ignore[method-assign]
            _put(before)

    def begin(self, rank: Rank) -> None:
        rank.state[NAME] = {}
        _put({})

    def enter(self, rank: Rank) -> None:
        if NAME in rank.state:
            _put(rank.state[NAME])

    def leave(self, rank: Rank) -> None:
        if NAME in rank.state:
            rank.state[NAME] = _contents()

    def end(self, rank: Rank) -> None:
        rank.state.pop(NAME, None)


def _unlocked(self: Any, instance: Any, owner: Any = None) -> Any:
    """Python 3.11's holds a lock for all objects of a class while it calls the function.

    A rank that waits for others in there, as Trainer's does in its first group, would keep them
    from ever coming. Since 3.12 there is none.
    """
    if instance is None:
        return self
    known = instance.__dict__
    if self.attrname not in known:
        known[self.attrname] = self.func(instance)
    return known[self.attrname]


def _shared() -> dict[str, dict[str, Any]]:
    """The dictionaries by their classes' names; none where the library is not imported."""
    state = sys.modules.get("accelerate.state")
    found = {name: getattr(state, name, None) for name in SHARED} if state else {}
    return {name: kind._shared_state for name, kind in found.items() if kind is not None}


def _contents() -> dict[str, dict[str, Any]]:
    return {name: dict(shared) for name, shared in _shared().items()}


def _put(contents: dict[str, dict[str, Any]]) -> None:
    for name, shared in _shared().items():
        shared.clear()
        shared.update(contents.get(name, {}))
