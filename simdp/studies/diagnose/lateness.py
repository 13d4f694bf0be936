"""Finds ranks that keep others waiting, and tests whether they are the same in each step.

What lateness costs a step is how long the rank waits that comes first: so much shorter would the
step be if all were as early. A rank's lateness is that less its own waiting.

The other steps tell which ranks are late in one: those whose mean lateness there is above the
middle between the largest and the smallest. What the step gains if just these were like the rest,
less what it gains if the rest were like these, is the part of a straggler (of how much later the
last rank is than the middle one of the others; less half of the mean's standard error, unless more
than half is sure):
all of it where the same ranks are late in every step, or in every step that is late at all; about
nothing where lateness moves from rank to rank. The remainder is imbalance. Ranks that take turns
are late together in a few steps by chance: where a t-test of these gains gives chance more than one
in twenty, and the straggler would be the larger part, it is imbalance too. A single step has no
others: the rank that most is waited for counts as a straggler, and what is waited for others as
imbalance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simdp.arrays import Bools, Floats

CHANCE = 0.05
"""What chance gives more often than this is not told from it."""

SAME = 1e-9
"""Gains that differ by a smaller part are equal."""


@dataclass(frozen=True, eq=False)
class Lateness:
    """How lateness divides.

    Attributes
    ----------
    cost : ndarray, shape `(num_steps,)`
        What each step loses to late ranks [s].
    straggling, moving : float
        The two parts of its mean [s].
    stragglers, others : tuple of int
        Places of the ranks that are late in most steps, and by turns.
    late : ndarray, shape `(num_steps, num_ranks)`
        How much later than the first each rank is [s].
    doubtful : tuple of int
        Places of ranks that are late in most steps, but in too few to tell that from chance.
    """

    cost: Floats
    straggling: float
    moving: float
    stragglers: tuple[int, ...]
    others: tuple[int, ...]
    late: Floats
    doubtful: tuple[int, ...] = ()


def lateness(waits: Floats, blamed: Floats) -> Lateness:
    """Divide what is lost to late ranks.

    Parameters
    ----------
    waits : ndarray, shape `(num_steps, num_ranks)`
        Waiting of each rank in the open, for ranks that are known [s].
    blamed : ndarray, shape `(num_steps, num_ranks, num_ranks)`
        The same by the rank that is waited for [s].
    """
    cost = waits.max(axis=1, initial=0.0)
    late = cost[:, np.newaxis] - waits
    num_steps, num_ranks = waits.shape
    charged = blamed.sum(axis=1)
    total = float(cost.mean()) if num_steps else 0.0
    if num_ranks < 2 or total <= 0:
        return Lateness(cost, 0.0, 0.0, (), (), late)
    if num_steps == 1:
        first = blamed[0, int(np.argmax(waits[0]))]
        top = int(np.argmax(charged[0]))
        straggling = min(float(first[top]), total)
        return Lateness(cost, straggling, total - straggling, (top,), _turns(first, {top}), late)
    gains, chosen = np.zeros(num_steps), np.zeros(num_ranks)
    for step in range(num_steps):
        others = np.delete(late, step, axis=0).mean(axis=0)
        told: Bools = others > (others.max() + others.min()) / 2
        if told.any() and not told.all():
            gains[step] = late[step][told].max() - late[step][~told].max()
            chosen += told
    middle = np.median(np.sort(late, axis=1)[:, :-1], axis=1)
    spare = float((late.max(axis=1) - middle).mean())
    part = _part(gains, spare)
    straggling = total * part
    often = np.flatnonzero(chosen > num_steps / 2)
    found = set(often.tolist()) if straggling > 0 else set()
    mean = charged.mean(axis=0)
    doubtful = tuple[int, ...]()
    if part > 1 / 2 and found and _chance(gains) > CHANCE:
        doubtful, straggling, found = tuple(sorted(found)), 0.0, set()
    return Lateness(
        cost,
        straggling,
        total - straggling,
        tuple(sorted(found)),
        _turns(mean, found),
        late,
        doubtful,
    )


def _chance(gains: Floats) -> float:
    """How likely such gains are where nobody is late more than others: a two-sided t-test.

    Two-sided, since of any two ranks either may be the one that is late by chance.
    """
    from scipy.special import stdtr  # few processes need it, and it takes long to import

    error = float(gains.std(ddof=1)) / np.sqrt(len(gains))
    if error <= SAME * abs(float(gains.mean())):
        return 0.0
    return 2 * float(stdtr(len(gains) - 1, -float(gains.mean()) / error))


def _part(gains: Floats, spare: float) -> float:
    """The stragglers' part of what is lost, 0 to 1."""
    if spare <= 0:
        return 0.0
    sure = (gains.mean() - gains.std(ddof=1) / np.sqrt(len(gains)) / 2) / spare
    return float(np.clip(gains.mean() / spare if sure > 1 / 2 else sure, 0.0, 1.0))


def _turns(charged: Floats, but: set[int]) -> tuple[int, ...]:
    """Ranks that the others wait for at least half as long as for the worst, but some."""
    rest = {place: float(charged[place]) for place in range(len(charged)) if place not in but}
    worst = max(rest.values(), default=0.0)
    return tuple(place for place, value in rest.items() if worst and value >= worst / 2)
