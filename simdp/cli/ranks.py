"""Ranks as an option lists them: ``0-7,12``."""

from __future__ import annotations

import re

from simdp.errors import ScenarioError

PART = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?")


def ranks_of(said: str) -> list[int]:
    """Read which ranks are meant.

    Raises
    ------
    ScenarioError
        If it is no list of numbers and ranges.
    """
    found: list[int] = []
    for part in said.split(","):
        match = PART.fullmatch(part.strip())
        low, high = (match[1], match[2] or match[1]) if match else ("1", "0")
        if int(low) > int(high):
            raise ScenarioError(
                [f"--ranks: {said!r} is no list of ranks; write such as 0-7 or 0,3,8-15."]
            )
        found += range(int(low), int(high) + 1)
    return found
