"""Derives sizes of gradients and units of layers from a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simdp.studies.replay.gradients import dealt, fitted_in, homes
from simdp.studies.replay.strategy import Recognised, whole_nbytes
from simdp.studies.replay.timeline import StepCollective


@dataclass(frozen=True)
class ReplayedLayer:
    """A layer: its times in a micro-step [s], and its tensors.

    Attributes
    ----------
    name : str
        Of its first tensor, too.
    forward, backward : float
        On the device [s].
    forward_host, backward_host : float
        What the host makes of it: not below the device's time where it is late [s].
    products : float
        Part of the device's time that products take.
    place : int
        Kernels of the step before its gradients are ready.
    tensors : tuple of (str, int)
        Names and elements, in the order in which they become ready.
    """

    name: str
    forward: float
    backward: float
    forward_host: float
    backward_host: float
    products: float
    place: int
    tensors: tuple[tuple[str, int], ...] = ()


def evenly(layers: list[ReplayedLayer], elements: int) -> list[ReplayedLayer]:
    """Deal gradients to all tensors alike."""
    slots = [
        (i, name) for i, one in enumerate(layers) for name, _ in one.tensors or ((one.name, 0),)
    ]
    sizes: dict[int, list[tuple[str, int]]] = {i: [] for i in range(len(layers))}
    for (i, name), size in zip(slots, dealt(elements, len(slots), None), strict=True):
        sizes[i].append((name, size))
    return [replace(one, tensors=tuple(sizes[i])) for i, one in enumerate(layers)]


def with_tensors(
    layers: list[ReplayedLayer], found: Recognised, itemsize: int, named: bool
) -> list[ReplayedLayer]:
    """Give tensors their sizes, from the copies of our own traces or from the buckets."""
    if any(nbytes for layer in layers for _, nbytes in layer.tensors):
        layers = [
            replace(each, tensors=tuple((n, size // itemsize) for n, size in each.tensors))
            for each in layers
        ]
        return _with_lost(layers, found, itemsize)
    if not found.buckets:
        return layers
    if found.sharded == "units":
        return _by_units(layers, found, itemsize, named)
    if found.tensors:
        layers = _by_tensors(layers, found, itemsize)
        return layers if named else _in_blocks(layers, [sent.after for sent in found.buckets])
    return _by_buckets(layers, found, itemsize, named)


def _by_buckets(
    layers: list[ReplayedLayer], found: Recognised, itemsize: int, named: bool
) -> list[ReplayedLayer]:
    ends = [sent.after for sent in found.buckets]
    slots = [
        (i, name) for i, one in enumerate(layers) for name, _ in one.tensors or ((one.name, 0),)
    ]
    caps = found.caps()
    sizes: dict[int, list[tuple[str, int]]] = {i: [] for i in range(len(layers))}
    sorted_in = homes(ends, [layers[i].place for i, _ in slots])
    # A bucket without a tensor of its own takes one beside the last of the bucket before.
    at = 0
    for number, (sent, mine) in enumerate(zip(found.buckets, sorted_in, strict=True)):
        total = round(whole_nbytes(sent) / itemsize)
        cap = caps[min(number, len(caps) - 1)]
        if not mine:
            sizes[at].append((f"bucket{number}", total))
            continue
        parts = dealt(total, len(mine), max(int(cap // itemsize), 1))
        for slot, size in zip(mine, parts, strict=True):
            at, name = slots[slot]
            if size:
                sizes[at].append((name, size))
    layers = [replace(one, tensors=tuple(sizes[i])) for i, one in enumerate(layers)]
    return layers if named else _in_blocks(layers, ends)


def _with_lost(
    layers: list[ReplayedLayer], found: Recognised, itemsize: int
) -> list[ReplayedLayer]:
    """Add tensors that are broadcast with copies too short to appear in the trace."""
    known = Counter(size for layer in layers for _, size in layer.tensors)
    lost = Counter(round(nbytes / itemsize) for nbytes in found.tensors) - known
    more = tuple((f"lost{i}", size) for i, size in enumerate(lost.elements()))
    return [*layers[:-1], replace(layers[-1], tensors=(*layers[-1].tensors, *more))]


def _by_tensors(
    layers: list[ReplayedLayer], found: Recognised, itemsize: int
) -> list[ReplayedLayer]:
    """Deal the tensors that are broadcast behind the update: those of a bucket over its layers.

    They come by owner. Which are a bucket's is told by its size; where it is not, by torch's rule,
    from the last to the first.
    """
    elements = [round(nbytes / itemsize) for nbytes in found.tensors]
    totals = [_elements(sent, itemsize) for sent in found.buckets]
    buckets = fitted_in(elements, totals) or _by_rule(elements, found, itemsize)
    sorted_in = homes([sent.after for sent in found.buckets], [layer.place for layer in layers])
    sizes: dict[int, list[tuple[str, int]]] = {i: [] for i in range(len(layers))}
    for number, mine in enumerate(buckets):
        slots = sorted_in[min(number, len(sorted_in) - 1)] or [len(layers) - 1]
        for k, size in enumerate(mine):
            # The last one is ready with its bucket.
            at = slots[(k + 1) * len(slots) // len(mine) - 1] if len(mine) > 1 else slots[-1]
            sizes[max(at, slots[0])].append((f"{layers[at].name}.{number}.{k}", size))
    return [replace(one, tensors=tuple(sizes[i])) for i, one in enumerate(layers)]


def _by_rule(elements: Sequence[int], found: Recognised, itemsize: int) -> list[list[int]]:
    """Tensors of each bucket, as torch closes them."""
    buckets: list[list[int]] = [[]]
    caps = [cap / itemsize for cap in found.caps()]
    for size in reversed(elements):
        if sum(buckets[-1]) >= caps[min(len(buckets), len(caps)) - 1]:
            buckets.append([])
        buckets[-1].append(size)
    return buckets


def _in_blocks(layers: list[ReplayedLayer], ends: Sequence[int]) -> list[ReplayedLayer]:
    """Name layers after their buckets, so that these are the units of sharded strategies."""
    found = []
    for layer in layers:
        bucket = sum(end < layer.place for end in ends)
        prefix = f"bucket.{min(bucket, len(ends) - 1)}."
        tensors = tuple((prefix + name, size) for name, size in layer.tensors)
        found.append(replace(layer, name=prefix + layer.name, tensors=tensors))
    return found


def _by_units(
    layers: list[ReplayedLayer], found: Recognised, itemsize: int, named: bool
) -> list[ReplayedLayer]:
    """Name layers after the units that come and go, and deal each unit's elements to its own."""
    order = [*found.buckets]
    named = named and are_labelled(found, [layer.name for layer in layers])
    units = [_unit_of(sent, i, len(order), named) for i, sent in enumerate(order)]
    blocks = [unit for unit in units if unit != ROOT]
    homes_of = list[str]()
    for layer in layers:
        if named:
            inside = [u for u in blocks if layer.name == u or layer.name.startswith(u + ".")]
            homes_of.append(max(inside, key=len) if inside else ROOT)
        else:
            behind = [u for u, sent in zip(units, order, strict=True) if layer.place <= sent.after]
            homes_of.append(behind[0] if behind else ROOT)
    renamed = list[ReplayedLayer]()
    for layer, unit in zip(layers, homes_of, strict=True):
        prefix = "" if named or unit == ROOT else unit + "."
        renamed.append(replace(layer, name=prefix + layer.name, tensors=()))
    for unit, sent in zip(units, order, strict=True):
        mine = [i for i, home in enumerate(homes_of) if home == unit]
        if not mine:
            continue
        for i, size in zip(mine, dealt(_elements(sent, itemsize), len(mine), None), strict=True):
            if size:
                renamed[i] = replace(renamed[i], tensors=((renamed[i].name, size),))
    return renamed


ROOT = "root"


def _elements(sent: StepCollective, itemsize: int) -> int:
    return round(whole_nbytes(sent) / itemsize)


def are_labelled(found: Recognised, layers: Sequence[str]) -> bool:
    """Whether the collectives of units name modules of the model, as some of our traces do."""
    labels = [_unit_of(sent, i, 0, True) for i, sent in enumerate(found.buckets)]
    known = [unit for unit in labels if unit != ROOT]
    return bool(known) and all(
        any(name == unit or name.startswith(unit + ".") for name in layers) for unit in known
    )


def _unit_of(sent: StepCollective, number: int, count: int, named: bool) -> str:
    """Name a unit as our own traces do, else by its number in forward; the last is the root."""
    if named:
        words = sent.label.split(" ")[1:]
        return words[0] if words else ROOT
    return ROOT if number == count - 1 else f"blocks.{count - 2 - number}"


def units_of(found: Recognised, layers: Sequence[str] | None) -> list[str] | str:
    """The units as a strategy names them: modules that differ in a number alone are a pattern.

    Parameters
    ----------
    found : Recognised
        The strategy.
    layers : sequence of str, optional
        All layers, where collectives are named after them. A pattern may mean no other of these.
    """
    count = len(found.buckets)
    names = [_unit_of(sent, i, count, layers is not None) for i, sent in enumerate(found.buckets)]
    patterns = []
    for name in reversed(names):
        stem, _, last = name.rpartition(".")
        is_pattern = bool(stem) and last.isdigit()
        for layer in layers or ():
            place = layer.removeprefix(stem + ".").split(".")[0]
            if layer.startswith(stem + ".") and place.isdigit():
                is_pattern &= f"{stem}.{place}" in names
        patterns.append(f"{stem}.*" if is_pattern else name)
    return [name for name in dict.fromkeys(patterns) if name != ROOT] or "whole"
