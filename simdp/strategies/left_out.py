"""Left out: what cannot do without the gradients of some ranks."""

from __future__ import annotations

from simdp.steps.facts import Facts, Ops
from simdp.steps.ops import NewGroup
from simdp.steps.quorum import QUORUM
from simdp.strategies.comm_hooks import CommHook
from simdp.workload import Workload

WHOLE = ("none", "bf16", "fp16")
"""Hooks that keep nothing from step to step, and add what ranks send as it is."""


def dropped_in_part(join: bool, hook: CommHook) -> str | None:
    """Say what would keep a part of gradients that are dropped, behind a comma; or None."""
    if join:
        return "but join lets ranks leave by themselves; leave one of them out."
    if hook.kind not in WHOLE:
        return (
            f"but comm_hook: {hook.kind} sends and keeps more than those of a step; use one of "
            f"{', '.join(WHOLE)}."
        )
    return None


def problem_with_backups(backup_ranks: int, world_size: int, workload: Workload) -> str | None:
    """Say why so many ranks cannot be dropped in every step; or None."""
    if backup_ranks >= world_size:
        return (
            f"backup_ranks: {backup_ranks} dropped gradients of {world_size} leave none; use at "
            f"most {world_size - 1}."
        )
    return asks_others(workload)


def asks_others(workload: Workload) -> str | None:
    """Say that ranks exchange more than gradients; or None."""
    if not workload.graph.is_synchronised:
        return None
    return (
        "kind: sync_batchnorm needs the statistics of all ranks in the middle of a step, of which "
        "some may be missing; use a batch norm that is not synchronised."
    )


def meet_again(facts: Facts) -> Ops:
    """Make a process group of those that take part, where these are not all ranks."""
    if facts.quorum.group is not None and facts.quorum.participants is not None:
        yield NewGroup(QUORUM, (facts.quorum.participants.ranks,), 0)


def unequal_groups(num_groups: int, world_size: int) -> str | None:
    """Say that ranks cannot be so many replica groups of one size; or None."""
    if not world_size % num_groups:
        return None
    fitting = [str(n) for n in range(2, world_size + 1) if world_size % n == 0]
    return (
        f"kind: {num_groups} replica groups do not divide the {world_size} ranks; use one of "
        f"{', '.join(fitting)}."
    )
