"""Frames: where in a program an error was raised, without what lies between it and us."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

import simdp

OURS = str(Path(simdp.__file__).parent)


def place_of(trace: TracebackType | None, *others: str) -> str:
    """Where in the program an error was raised: ``, train.py:12``; or nothing.

    Parameters
    ----------
    trace : traceback or None
        The error's.
    *others : str
        Folders of libraries that are not the program either.
    """
    found = [
        f", {frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(trace)
        if not frame.filename.startswith((OURS, *others))
    ]
    return found[-1] if found else ""


def without_ours(error: BaseException) -> str:
    """A traceback as Python prints it, without our frames."""
    told = traceback.TracebackException.from_exception(error)
    chain: list[traceback.TracebackException] = [told]
    while chain:
        each = chain.pop()
        kept = [frame for frame in each.stack if not frame.filename.startswith(OURS)]
        each.stack = traceback.StackSummary.from_list(kept)
        chain += [cause for cause in (each.__cause__, each.__context__) if cause is not None]
    return "".join(told.format()).rstrip("\n")
