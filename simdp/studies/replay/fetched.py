"""Finds ZeRO-3's parameters from gathers in forward and after the update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from simdp.strategies.zero import PERSISTENT_ELEMENTS, PREFETCHED_ELEMENTS
from simdp.studies.replay.gradients import dealt
from simdp.studies.replay.phases import FORWARD
from simdp.studies.replay.strategy import Recognised, elements_of
from simdp.studies.replay.tensors import ReplayedLayer
from simdp.studies.replay.timeline import StepCollective, StepWork

SLACK = 1e-6
"""Part of forward that counts as no time."""


def by_fetches(
    layers: Sequence[ReplayedLayer], found: Recognised, step: StepWork
) -> list[ReplayedLayer]:
    """Give each layer its share of what is fetched with it, and of what stays whole.

    Parameters are fetched in forward's order. Those of one gather belong to its layers that take
    most time: they are equal, and none stays whole, but only with the last there are enough of
    them. What stays is dealt to the layers that fetch nothing.

    Parameters
    ----------
    layers : sequence of Layer
        In the order of backward.
    found : Recognised
        With the gathers of forward, and those behind the update.
    step : StepWork
        A typical one.
    """
    order = [*reversed(layers)]
    sizes: list[list[int]] = [[] for _ in order]
    cap = int(found.strategy.get("prefetch_bucket_size", PREFETCHED_ELEMENTS))
    for sent, mine in zip(found.units, _homes(order, found, step), strict=True):
        elements = elements_of(sent)
        most = max(elements // (PERSISTENT_ELEMENTS + 1), 1)
        num = min(_count(sent) or len(mine), most)
        longest = sorted(sorted(mine, key=lambda i: -order[i].backward)[:num])
        for k, size in enumerate(dealt(elements, num, cap)):
            sizes[longest[k * len(longest) // num]].append(size)
    free = [i for i, each in enumerate(sizes) if not each] or [*range(len(order))]
    for sent in found.persistent:
        elements = elements_of(sent)
        num = max(len(free), -(-elements // PERSISTENT_ELEMENTS))
        for k, size in enumerate(dealt(elements, num, None)):
            sizes[free[k % len(free)]].append(size)
    given = []
    for layer, each in zip(layers, reversed(sizes), strict=True):
        names = [f"{layer.name}.{k}" if k else layer.name for k in range(len(each))]
        given.append(replace(layer, tensors=tuple(zip(names, reversed(each), strict=True))))
    return given


def _count(sent: StepCollective) -> int | None:
    """Tensors of a gather, where our own traces say: ``conv1.weight and 48 more``."""
    words = sent.label.split(" ")[1:]
    return (1 + int(words[2]) if len(words) > 2 else 1) if words else None


def _homes(order: Sequence[ReplayedLayer], found: Recognised, step: StepWork) -> list[list[int]]:
    """Layers of each gather: from the one that its name says on, else from where it was there."""
    named = [_named(order, sent) for sent in found.units]
    begins = [begin for begin in named if begin is not None]
    if len(begins) < len(named) or any(b <= a for a, b in pairwise(begins)):
        begins = _timed(order, found.units, step)
    return [
        [*range(begin, max(end, begin + 1))]
        for begin, end in zip(begins, [*begins[1:], len(order)], strict=True)
    ]


def _timed(
    order: Sequence[ReplayedLayer], gathers: Sequence[StepCollective], step: StepWork
) -> list[int]:
    """Where in forward the parameters of each gather are used first.

    That is by the kernel which waited for it. Without one it is not before it was there, and as far
    on as those before it have elements.
    """
    ahead = step.phase == FORWARD
    clock = np.concatenate([[0.0], np.cumsum(np.where(ahead, step.busy + step.idle, 0.0))])
    layers = np.concatenate([[0.0], np.cumsum([one.forward for one in order])])
    sizes = np.array([elements_of(sent) for sent in gathers], float)
    share = np.concatenate([[0.0], np.cumsum(sizes)[:-1]]) / max(sizes.sum(), 1.0)
    there = np.array([clock[sent.until] for sent in gathers]) / (clock[-1] or 1.0)
    behind = np.minimum([sent.until for sent in gathers], len(step.waits) - 1)
    waited = step.waits[behind] > SLACK * clock[-1]
    at = np.where(waited, there, np.maximum(share, there)) * layers[-1]
    found = list[int]()
    for each in at:
        nearest = int(np.abs(layers[:-1] - each).argmin())
        found.append(min(max(nearest, found[-1] + 1 if found else 0), len(order) - 1))
    return found


def _named(order: Sequence[ReplayedLayer], sent: StepCollective) -> int | None:
    """The layer whose parameter a gather is named after."""
    words = sent.label.split(" ")[1:2]
    name = words[0].rpartition(".")[0] if words else ""
    return next((i for i, layer in enumerate(order) if layer.name == name), None)
