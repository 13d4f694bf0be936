"""Infeasible: why points of a plan cannot be simulated, and which option would free them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

BATCH_OPTION = "--global-batch"

KEY = re.compile(r"([a-z_]+(?:\.[a-z_0-9]+)*): ")
"""The key that leads a line of a `ScenarioError`."""


class Infeasible(NamedTuple):
    """Why a point cannot be.

    Attributes
    ----------
    reason : str
        In words, the same for all points of one cause.
    option : str or None
        Of the command or of the scenario: with another value of it the point might be simulated.
    divisor : int
        Where the global batch is not a multiple of it: GPUs times micro-batch; else 0.
    batch : int
        The global batch then.
    """

    reason: str
    option: str | None = None
    divisor: int = 0
    batch: int = 0

    @classmethod
    def of_line(cls, line: str) -> Infeasible:
        """Of a line of a `ScenarioError`, which a key leads."""
        found = KEY.match(line)
        return cls(line, found[1] if found else None)

    @classmethod
    def of_batch(cls, batch: int, world_size: int, microbatch: int) -> Infeasible:
        """Of a global batch that the ranks cannot share in whole micro-steps."""
        reason = f"a global batch of {batch:,} is no multiple of GPUs x micro-batch"
        return cls(reason, BATCH_OPTION, world_size * microbatch, batch)


def summed(
    counts: Mapping[Infeasible, int], divisors: Mapping[int, int] | None = None
) -> list[dict[str, Any]]:
    """Count points by reason, the most frequent reason first.

    Parameters
    ----------
    counts : mapping of Infeasible to int
        Points of each.
    divisors : mapping of int to int
        GPUs times micro-batch of points that can be, and how many have it.

    Returns
    -------
    list of dict
        Each with ``reason``, ``count`` and ``option``; that of a batch names the value with which
        the most points can be.
    """
    groups: dict[tuple[str, str | None], dict[Infeasible, int]] = {}
    for one, count in counts.items():
        groups.setdefault((one.reason, one.option), {})[one] = count
    found = [
        {
            "reason": reason,
            "count": sum(group.values()),
            "option": _freeing(option, group, divisors or {}),
        }
        for (reason, option), group in groups.items()
    ]
    return sorted(found, key=lambda row: (-row["count"], row["reason"]))


def _freeing(
    option: str | None, group: Mapping[Infeasible, int], possible: Mapping[int, int]
) -> str | None:
    """An option, with a value if one is known."""
    divisors = Counter({one.divisor: count for one, count in group.items() if one.divisor})
    if not divisors:
        return option
    batch = next(iter(group)).batch
    tried = {-(-batch // divisor) * divisor for divisor in divisors}
    everyone = divisors + Counter(possible)
    freed = {
        value: sum(count for divisor, count in everyone.items() if value % divisor == 0)
        for value in tried
    }
    best = min(freed, key=lambda value: (-freed[value], value))
    return f"{option} {best}"
