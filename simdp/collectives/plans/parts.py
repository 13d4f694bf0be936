"""Parts: plans put together from other plans.

A rank enters a part when it has left those that the part comes after; parts that do not come after
each other run at the same time. Slices of a composed plan run one behind the other: a rank enters a
stage with its next slice when it has left it with the one before.
"""

from __future__ import annotations

import numpy as np

from simdp.arrays import Ints
from simdp.collectives.plans.plan import Part, Plan

NO_SPREAD = np.zeros(1, dtype=np.int64)


class Assembly:
    """Parts of a plan in the making; a plan that is added with parts of its own is taken apart."""

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def add(
        self,
        plan: Plan,
        members: Ints,
        first: Ints,
        step: int = 1,
        spread: Ints = NO_SPREAD,
        after: tuple[int, ...] = (),
    ) -> tuple[int, ...]:
        """Add a plan for groups of ranks.

        Parameters
        ----------
        plan, members, first, step, spread, after
            As in `Part`.

        Returns
        -------
        tuple of int
            The parts that end the plan; what follows comes ``after`` them.
        """
        begin = len(self.parts)
        for part in plan.everything:
            places = members[:, part.members].reshape(-1, part.members.shape[1])
            starts = (first[:, None] + part.first * step).reshape(-1)
            wide = (part.spread[:, None] * step + spread).reshape(-1)
            earlier = tuple(begin + number for number in part.after) or after
            self.parts.append(Part(part.plan, places, starts, part.step * step, wide, earlier))
        inner = {number for part in plan.everything for number in part.after}
        return tuple(begin + i for i in range(len(plan.everything)) if i not in inner)


def in_slices(stages: list[Part], slices: int) -> tuple[Part, ...]:
    """Let slices run through parts one behind the other."""
    if slices == 1:
        return tuple(stages)
    count = len(stages)
    found = []
    # In the order in which they run if all take as long: stage s of slice k in turn s + k.
    turns = sorted((s + k, k, s) for s in range(count) for k in range(slices))
    place = {(s, k): number for number, (_, k, s) in enumerate(turns)}
    for _, k, s in turns:
        part = stages[s]
        after = [place[earlier, k] for earlier in part.after]
        if k:
            after.append(place[s, k - 1])
        first, step, spread = part.first * slices + k, part.step * slices, part.spread * slices
        found.append(Part(part.plan, part.members, first, step, spread, tuple(after)))
    return tuple(found)


def in_groups(plan: Plan, groups: Ints, world_size: int | None = None) -> Plan:
    """The plan of several process groups that do the same at the same time.

    Parameters
    ----------
    plan : Plan
        Of one group; without switches.
    groups : ndarray, shape `(num_groups, plan.world_size)`, int64
        The ranks of each group; none is in two.
    world_size : int, optional
        Ranks in all, where some are in no group: these do nothing. Left out, every rank is in one.
    """
    assert not plan.num_switches
    parts = Assembly()
    parts.add(plan, groups, np.zeros(len(groups), dtype=np.int64))
    return Plan(
        collective=plan.collective,
        world_size=groups.size if world_size is None else world_size,
        num_chunks=plan.num_chunks,
        root=int(groups[0, plan.root]),
        rounds=lambda: iter(()),
        offsets=plan.offsets,
        num_scratch=plan.num_scratch,
        parts=tuple(parts.parts),
    )
