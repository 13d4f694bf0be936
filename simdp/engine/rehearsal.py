"""Rehearsal: a step read once for what it costs, and charged again and again.

Steps that cannot differ are the same plan over micro-batches of the same shapes: then all that is
work costs what it cost before, up to the factors of stragglers, and only collectives, waiting and
updates are read anew. What is rehearsed knows no network, so that runs which differ in that share
it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from simdp.arrays import Bools, Floats
from simdp.engine.ops import Stretch, Work
from simdp.engine.slowdown import SLOWED
from simdp.steps import coalesced, coded, ops, own_hook, unit_ops
from simdp.steps.offload import HostCopy
from simdp.steps.ops import Op

T = TypeVar("T")

MAX_REHEARSED = 64
"""Steps that are kept; padded batches have ever new shapes."""


class Piece(NamedTuple):
    """Work that nothing comes between, before anything slows it down.

    Attributes
    ----------
    activities : tuple of str
        Of each work.
    seconds : ndarray, shape `(num_works, world_size)`
        Of each work [s].
    is_slowed : ndarray, shape `(num_works, 1)`, bool
        Whether stragglers slow it down.
    first : int
        The first that is forward or backward, which a pause comes with; -1 where none is.
    """

    activities: tuple[str, ...]
    seconds: Floats
    is_slowed: Bools
    first: int

    def charged(self, step: int, factors: Floats, owed: Floats) -> Stretch:
        """What it takes in a step."""
        seconds = np.where(self.is_slowed, self.seconds * factors, self.seconds)
        if owed.any() and self.first >= 0:
            seconds[self.first] += owed
        return Stretch(step, self.activities, seconds)


Rehearsed = list[Piece | Op]
"""A step: work in pieces, and operations to be read between them."""


def piece(works: list[Work]) -> Piece:
    """Put work together."""
    activities = tuple(work.activity for work in works)
    passes = [i for i, name in enumerate(activities) if name in ("forward", "backward")]
    return Piece(
        activities,
        np.array([work.seconds for work in works]),
        np.array([name in SLOWED for name in activities])[:, None],
        passes[0] if passes else -1,
    )


WORK_ALONE = frozenset(
    {ops.Forward, ops.Backward, ops.Tail, ops.Copy, ops.Fill, ops.Take, ops.Split, ops.Join}
    | {coded.Rounding, ops.Select, ops.AddSelected, ops.Done, ops.Hold, ops.Scale}
    | {unit_ops.Open, unit_ops.Release, unit_ops.Unshard, unit_ops.Free}
    | {coalesced.KeepSums, coded.Observe, coded.Quantize, coded.Dequantize, HostCopy}
    | {own_hook.CallHook, own_hook.EndHook}
)
"""Operations that cost work at most, the same whenever they come."""


def rehearse(plan: Iterable[Op], cost: Callable[[Op], Sequence[Any]]) -> Rehearsed:
    """Put the work of a plan in pieces.

    Parameters
    ----------
    plan : iterable of Op
        A step.
    cost : callable
        Tells what an operation costs that nothing slows down.
    """
    found, works = list[Piece | Op](), list[Work]()
    for op in plan:
        if type(op) in WORK_ALONE:
            works += cost(op)
            continue
        if works:
            found.append(piece(works))
            works = []
        found.append(op)
    return [*found, piece(works)] if works else found


class Rehearsals:
    """Steps that have been read."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Any, Rehearsed]] = {}
        self._update: Any = None

    def update(self, make: Callable[[], T]) -> T:
        """What an update moves, which is the same in every step."""
        if self._update is None:
            self._update = make()
        found: T = self._update
        return found

    def find(self, key: Hashable) -> Rehearsed | None:
        """A step that was read before."""
        _, steps = self._known.get(key, (None, None))
        return steps

    def keep(self, key: Hashable, plan: Any, steps: Rehearsed) -> None:
        """Keep one, with the plan that its key names; where there are too many, the oldest goes."""
        if len(self._known) >= MAX_REHEARSED:
            del self._known[next(iter(self._known))]
        self._known[key] = (plan, steps)
