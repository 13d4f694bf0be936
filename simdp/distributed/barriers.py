"""Barriers: where ranks wait for each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simdp.distributed.groups import AnyGroup, member, whole_number
from simdp.distributed.making import seconds_of
from simdp.distributed.work import Work, issue
from simdp.engine.programs.calls import NOTHING, Asked, Given, listed
from simdp.errors import ProgramError

MONITORED = ("gloo",)
"""Backends that have a `monitored_barrier` in torch."""

TIMEOUT = 1800.0
"""How long torch's rank 0 waits if nobody says [s]."""


def barrier(
    group: AnyGroup = None,
    async_op: bool = False,
    device_ids: Sequence[int] | None = None,
    timeout: Any = None,
) -> Work | None:
    """Wait until all ranks have come here; ``device_ids`` and ``timeout`` are of no effect."""
    call = "barrier"
    at = member(group, call)
    if at is None:
        return None
    seconds_of(timeout, call)
    ids = device_ids if device_ids is not None else []
    if not isinstance(ids, list) or None in map(whole_number, ids):
        raise ProgramError(f"{call}: device_ids is {device_ids!r}; give a list of numbers, as [0].")
    return issue(at, Asked(call), NOTHING, async_op, call)


def monitored_barrier(
    group: AnyGroup = None, timeout: Any = None, wait_all_ranks: bool = False
) -> None:
    """Wait until all ranks have come here; the group's first rank tells who is late.

    As in torch, every rank sends to the first one, which answers when it has heard of all. A rank
    that never comes is named by the report of the deadlock.

    Parameters
    ----------
    group : ProcessGroup, optional
        All ranks, if left out. Its backend must be gloo.
    timeout : timedelta, optional
        How long after the first rank others may come; that of `init_process_group`, or 30 minutes,
        if left out.
    wait_all_ranks : bool
        Whether all late ranks are named, and not the first of them only.

    Raises
    ------
    ProgramError
        On the group's first rank, if others are late; or if an argument is wrong.
    """
    call = "monitored_barrier"
    at = member(group, call)
    if at is None:
        return
    if at.group.backend not in MONITORED:
        raise ProgramError(
            f"{call}: backend {at.group.backend} has none; use {MONITORED[0]}, or barrier."
        )
    patience = seconds_of(timeout, call) or at.process.timeout or TIMEOUT
    rank, ranks = at.process.rank, at.group.ranks
    first, asked = rank == ranks[0], Asked(call)
    came = np.array([at.process.runtime.clock[rank]])
    everyone = list(np.zeros((len(ranks), 1))) if first else []
    issue(at, asked, Given((came,), everyone), False, "gather")
    late = [ranks[place] for place, each in enumerate(everyone) if each > came + patience]
    if late:
        shown = listed(late if wait_all_ranks else late[:1])
        raise ProgramError(f"{call}: {shown} did not come within {patience:g} s of rank {rank}.")
    issue(at, asked, Given(everyone, (came,)), False, "scatter")
