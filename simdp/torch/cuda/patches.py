"""Patches: names of torch that answer for virtual devices while a program runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

MISSING = object()


class Patches:
    """What was put in the place of something else, to be taken back.

    Parameters
    ----------
    stack : ExitStack
        Closing it takes all of it back, the last first.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def undo(self, call: Callable[[], Any]) -> None:
        """Have something else called when all is taken back."""
        self._stack.callback(call)

    def put(self, owner: Any, name: str, value: Any) -> Any:
        """Give an attribute another value; returns what it was, or None."""
        own = vars(owner).get(name, MISSING)
        before = getattr(owner, name, None)
        setattr(owner, name, value)
        if own is MISSING:
            self._stack.callback(delattr, owner, name)
        else:
            self._stack.callback(setattr, owner, name, own)
        return before

    def wrap(self, owner: Any, name: str, around: Callable[[Any], Callable[..., Any]]) -> None:
        """Put a function around another one; nothing happens where there is none."""
        before = getattr(owner, name, None)
        if before is not None:
            self.put(owner, name, around(before))
