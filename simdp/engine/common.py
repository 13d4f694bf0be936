"""Common: what runs that differ in their network have in common, worked out once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from simdp.engine.compute import Times
from simdp.engine.readers.ledger import Ledger
from simdp.engine.rehearsal import Rehearsals
from simdp.scenario import Scenario
from simdp.steps.program import Program


@dataclass
class Common:
    """What does not depend on links and collectives.

    Attributes
    ----------
    times : Times or None
        How long compute takes, once a run has found it.
    rehearsals : Rehearsals
        Steps that have been read.
    ledger : Ledger or None
        What every rank keeps in memory, once that has been followed.
    """

    times: Times | None = None
    rehearsals: Rehearsals = field(default_factory=Rehearsals)
    ledger: Ledger | None = None


_KNOWN: deque[tuple[Program, tuple[Any, ...], Common]] = deque(maxlen=8)


def common_to(scenario: Scenario) -> Common:
    """What a scenario shares with those that were simulated before.

    Parameters
    ----------
    scenario : Scenario
        Without numerics; its strategy must not go by nominal times, which depend on the network.
    """
    cluster, program = scenario.cluster, scenario.program
    of = cluster.device, cluster.ranks_per_device, cluster.allocator
    for other, devices, found in _KNOWN:
        if other is program and devices == of:
            return found
    found = Common(ledger=_followed(program, of))
    _KNOWN.append((program, of, found))
    return found


def _followed(program: Program, of: tuple[Any, ...]) -> Ledger | None:
    """What ranks keep, where it was followed for other devices, which does not matter."""
    for other, devices, found in _KNOWN:
        if other is program and devices[1:] == of[1:] and found.ledger is not None:
            return found.ledger
    return None
