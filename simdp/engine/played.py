"""Played: what a run leaves behind, whoever played it."""

from __future__ import annotations

from typing import Any, NamedTuple

from simdp.engine.clocks.clock import Clock
from simdp.engine.cohort import Cohort
from simdp.engine.network.traffic import Traffic


class Played(NamedTuple):
    """What a run leaves behind.

    Attributes
    ----------
    cohort : Cohort
        All ranks, with their records, replicas and memory.
    clock : Clock
        Which clock played, and why.
    traffic : Traffic
        What was sent.
    server : dict or None
        What a server did; see `simdp.results.result.Result.server`.
    """

    cohort: Cohort
    clock: Clock
    traffic: Traffic
    server: dict[str, Any] | None = None
