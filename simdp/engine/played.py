"""Played: what a run leaves behind, whoever played it."""

from __future__ import annotations

from typing import Any, NamedTuple

from simdp.engine.clocks.clock import Clock
from simdp.engine.network.traffic import Traffic
from simdp.engine.run import Run


class Played(NamedTuple):
    """What a run leaves behind.

    Attributes
    ----------
    run : Run
        All ranks, with their numbers and memory.
    clock : Clock
        Which clock played, and why.
    traffic : Traffic
        What was sent.
    server : dict or None
        What a server did; see `simdp.results.result.Result.server`.
    """

    run: Run
    clock: Clock
    traffic: Traffic
    server: dict[str, Any] | None = None
