"""Makes a layer profile of a step: times of layers, their tensors, and the file's text.

Our own traces name layers, and kernels of real ones belong to what lies between two gradients that
became ready: backward is cut there. Forward's time is divided among the same layers, by name or in
proportion to their backward; only gathers of single layers' parameters depend on this division.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.strategies.zero import PERSISTENT_ELEMENTS, PREFETCHED_ELEMENTS
from simdp.studies.replay.strategy import Recognised, elements_of, whole_nbytes
from simdp.studies.replay.timeline import BACKWARD, COPIED, FORWARD, StepCollective, StepWork
from simdp.studies.replay.typical import micro_steps
from simdp.traces.kernels import is_product

# Elements -----------------------------------------------------------------------------------------


def split_elements(total: int, num_tensors: int, cap: int | None) -> list[int]:
    """Divide a bucket's elements among its tensors, so that torch's rule makes the same bucket.

    Torch closes a bucket behind the tensor with which it reaches its limit: those before must stay
    below. Within that, tensors are equal.

    Parameters
    ----------
    total : int
        Elements of the bucket.
    num_tensors : int
        Its tensors, 1 or more.
    cap : int or None
        Elements at which it is closed; None where it is not.

    Returns
    -------
    list of int
        In the order in which they become ready; each above 0, if there are enough elements.
    """
    num = max(1, min(num_tensors, total))
    part = total // num
    if cap is not None and part * (num - 1) >= cap:
        part = max((cap - 1) // (num - 1), 0)
    if not part:
        return [0] * (num_tensors - 1) + [total]
    parts = [part] * (num - 1)
    return [*parts, total - sum(parts)] + [0] * (num_tensors - num)


def tensors_by_bucket(ends: Sequence[int], places: Sequence[int]) -> list[list[int]]:
    """Sort tensors into buckets: those that are ready by a bucket's launch, and in none before.

    Parameters
    ----------
    ends : sequence of int
        Kernels before the launch of each bucket, rising.
    places : sequence of int
        Kernels before each tensor is ready, rising.

    Returns
    -------
    list of list of int
        Numbers of the tensors of each bucket; what is behind all is the last one's.
    """
    buckets: list[list[int]] = [[] for _ in ends]
    bucket = 0
    for number, place in enumerate(places):
        while bucket < len(ends) - 1 and place > ends[bucket]:
            bucket += 1
        if buckets:
            buckets[bucket].append(number)
    return buckets


def packed_by_size(sizes: Sequence[int], totals: Sequence[int]) -> list[list[int]] | None:
    """Sort tensors into buckets of which the sums are known, the largest first.

    Each goes to the bucket that has least room left of those where it fits.

    Parameters
    ----------
    sizes, totals : sequence of int
        Of tensors, and of buckets; in one unit.

    Returns
    -------
    list of list of int
        Sizes of each bucket's tensors, the largest last, so that none before it closes a bucket; or
        None where they do not fill the buckets.
    """
    room = list(totals)
    buckets: list[list[int]] = [[] for _ in totals]
    for size in sorted(sizes, reverse=True):
        bucket = min(
            (i for i, left in enumerate(room) if left >= size), key=room.__getitem__, default=None
        )
        if bucket is None:
            return None
        room[bucket] -= size
        buckets[bucket].insert(0, size)
    return None if any(room) else buckets


# Tensors ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReplayedLayer:
    """A layer: its times in a micro-step [s], and its tensors."""

    name: str  # of its first tensor, too
    # forward, backward: on the device [s]
    forward: float
    backward: float
    # forward_host, backward_host: what the host makes of it: not below the device's time where it
    # is late [s]
    forward_host: float
    backward_host: float
    products: float  # part of the device's time that products take
    place: int  # kernels of the step before its gradients are ready
    # names and elements, in the order in which they become ready
    tensors: tuple[tuple[str, int], ...] = ()


def with_even_tensors(layers: list[ReplayedLayer], elements: int) -> list[ReplayedLayer]:
    """Divide gradients among all tensors evenly."""
    slots = [
        (i, name)
        for i, layer in enumerate(layers)
        for name, _ in layer.tensors or ((layer.name, 0),)
    ]
    sizes: dict[int, list[tuple[str, int]]] = {i: [] for i in range(len(layers))}
    for (i, name), size in zip(slots, split_elements(elements, len(slots), None), strict=True):
        sizes[i].append((name, size))
    return [replace(layer, tensors=tuple(sizes[i])) for i, layer in enumerate(layers)]


def with_tensors(
    layers: list[ReplayedLayer], recognised: Recognised, itemsize: int, named: bool
) -> list[ReplayedLayer]:
    """Give tensors their sizes, from the copies of our own traces or from the buckets."""
    if any(nbytes for layer in layers for _, nbytes in layer.tensors):
        layers = [
            replace(reduced, tensors=tuple((n, size // itemsize) for n, size in reduced.tensors))
            for reduced in layers
        ]
        return _with_lost(layers, recognised, itemsize)
    if not recognised.buckets:
        return layers
    if recognised.sharded == "units":
        return _by_units(layers, recognised, itemsize, named)
    if recognised.tensors:
        layers = _by_tensors(layers, recognised, itemsize)
        return layers if named else _in_blocks(layers, [sent.after for sent in recognised.buckets])
    return _by_buckets(layers, recognised, itemsize, named)


def _by_buckets(
    layers: list[ReplayedLayer], recognised: Recognised, itemsize: int, named: bool
) -> list[ReplayedLayer]:
    ends = [sent.after for sent in recognised.buckets]
    slots = [
        (i, name)
        for i, layer in enumerate(layers)
        for name, _ in layer.tensors or ((layer.name, 0),)
    ]
    caps = recognised.caps()
    sizes: dict[int, list[tuple[str, int]]] = {i: [] for i in range(len(layers))}
    sorted_in = tensors_by_bucket(ends, [layers[i].place for i, _ in slots])
    # A bucket without a tensor of its own adds one next to the last of the bucket before.
    at = 0
    for number, (sent, mine) in enumerate(zip(recognised.buckets, sorted_in, strict=True)):
        total = round(whole_nbytes(sent) / itemsize)
        cap = caps[min(number, len(caps) - 1)]
        if not mine:
            sizes[at].append((f"bucket{number}", total))
            continue
        parts = split_elements(total, len(mine), max(int(cap // itemsize), 1))
        for slot, size in zip(mine, parts, strict=True):
            at, name = slots[slot]
            if size:
                sizes[at].append((name, size))
    layers = [replace(layer, tensors=tuple(sizes[i])) for i, layer in enumerate(layers)]
    return layers if named else _in_blocks(layers, ends)


def _with_lost(
    layers: list[ReplayedLayer], recognised: Recognised, itemsize: int
) -> list[ReplayedLayer]:
    """Add tensors that are broadcast with copies too short to appear in the trace."""
    known = Counter(size for layer in layers for _, size in layer.tensors)
    lost = Counter(round(nbytes / itemsize) for nbytes in recognised.tensors) - known
    more = tuple((f"lost{i}", size) for i, size in enumerate(lost.elements()))
    return [*layers[:-1], replace(layers[-1], tensors=(*layers[-1].tensors, *more))]


def _by_tensors(
    layers: list[ReplayedLayer], recognised: Recognised, itemsize: int
) -> list[ReplayedLayer]:
    """Divide the tensors that are broadcast behind the update: those of a bucket over its layers.

    They come by owner. Sizes of buckets show their tensors; else torch's rule does, from the last
    to the first.
    """
    elements = [round(nbytes / itemsize) for nbytes in recognised.tensors]
    totals = [_elements(sent, itemsize) for sent in recognised.buckets]
    buckets = packed_by_size(elements, totals) or _by_rule(elements, recognised, itemsize)
    sorted_in = tensors_by_bucket(
        [sent.after for sent in recognised.buckets], [layer.place for layer in layers]
    )
    sizes: dict[int, list[tuple[str, int]]] = {i: [] for i in range(len(layers))}
    for number, mine in enumerate(buckets):
        slots = sorted_in[min(number, len(sorted_in) - 1)] or [len(layers) - 1]
        for k, size in enumerate(mine):
            # The last one is ready with its bucket.
            at = slots[(k + 1) * len(slots) // len(mine) - 1] if len(mine) > 1 else slots[-1]
            sizes[max(at, slots[0])].append((f"{layers[at].name}.{number}.{k}", size))
    return [replace(layer, tensors=tuple(sizes[i])) for i, layer in enumerate(layers)]


def _by_rule(elements: Sequence[int], recognised: Recognised, itemsize: int) -> list[list[int]]:
    """Tensors of each bucket, as torch closes them."""
    buckets: list[list[int]] = [[]]
    caps = [cap / itemsize for cap in recognised.caps()]
    for size in reversed(elements):
        if sum(buckets[-1]) >= caps[min(len(buckets), len(caps)) - 1]:
            buckets.append([])
        buckets[-1].append(size)
    return buckets


def _in_blocks(layers: list[ReplayedLayer], ends: Sequence[int]) -> list[ReplayedLayer]:
    """Name layers after their buckets, so that these are the units of sharded strategies."""
    named_layers = []
    for layer in layers:
        bucket = sum(end < layer.place for end in ends)
        prefix = f"bucket.{min(bucket, len(ends) - 1)}."
        tensors = tuple((prefix + name, size) for name, size in layer.tensors)
        named_layers.append(replace(layer, name=prefix + layer.name, tensors=tensors))
    return named_layers


def _by_units(
    layers: list[ReplayedLayer], recognised: Recognised, itemsize: int, named: bool
) -> list[ReplayedLayer]:
    """Name layers after their units, and divide each unit's elements among its layers."""
    order = [*recognised.buckets]
    named = named and are_labelled(recognised, [layer.name for layer in layers])
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
        for i, size in zip(
            mine, split_elements(_elements(sent, itemsize), len(mine), None), strict=True
        ):
            if size:
                renamed[i] = replace(renamed[i], tensors=((renamed[i].name, size),))
    return renamed


ROOT = "root"


def _elements(sent: StepCollective, itemsize: int) -> int:
    return round(whole_nbytes(sent) / itemsize)


def are_labelled(recognised: Recognised, layers: Sequence[str]) -> bool:
    """Whether the collectives of units name modules of the model, as some of our traces do."""
    labels = [_unit_of(sent, i, 0, True) for i, sent in enumerate(recognised.buckets)]
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


def units_of(recognised: Recognised, layers: Sequence[str] | None) -> list[str] | str:
    """The units as a strategy names them: modules that differ in a number alone are a pattern.

    Parameters
    ----------
    recognised : Recognised
        The strategy.
    layers : sequence of str, optional
        All layers, where collectives are named after them. A pattern may mean no other of these.
    """
    count = len(recognised.buckets)
    is_ours = layers is not None
    names = [_unit_of(sent, i, count, is_ours) for i, sent in enumerate(recognised.buckets)]
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


# Gathers of ZeRO-3's parameters -------------------------------------------------------------------

SLACK = 1e-6  # part of forward that counts as no time


def by_fetches(
    layers: Sequence[ReplayedLayer], recognised: Recognised, step: StepWork
) -> list[ReplayedLayer]:
    """Give each layer its share of what is fetched with it, and of what stays whole.

    Parameters are fetched in forward's order. Those of one gather belong to its layers that take
    most time: they are equal, and none stays whole, but only with the last there are enough of
    them. Parameters that stay are divided among the layers that fetch nothing.

    Parameters
    ----------
    layers : sequence of Layer
        In the order of backward.
    recognised : Recognised
        With the gathers of forward, and those behind the update.
    step : StepWork
        A typical one.
    """
    order = [*reversed(layers)]
    sizes: list[list[int]] = [[] for _ in order]
    cap = int(recognised.strategy.get("prefetch_bucket_size", PREFETCHED_ELEMENTS))
    gathered = _layers_of_gathers(order, recognised, step)
    for sent, mine in zip(recognised.units, gathered, strict=True):
        elements = elements_of(sent)
        most = max(elements // (PERSISTENT_ELEMENTS + 1), 1)
        num = min(_count(sent) or len(mine), most)
        longest = sorted(sorted(mine, key=lambda i: -order[i].backward)[:num])
        for k, size in enumerate(split_elements(elements, num, cap)):
            sizes[longest[k * len(longest) // num]].append(size)
    free = [i for i, part in enumerate(sizes) if not part] or [*range(len(order))]
    for sent in recognised.persistent:
        elements = elements_of(sent)
        num = max(len(free), -(-elements // PERSISTENT_ELEMENTS))
        for k, size in enumerate(split_elements(elements, num, None)):
            sizes[free[k % len(free)]].append(size)
    given = []
    for layer, part in zip(layers, reversed(sizes), strict=True):
        names = [f"{layer.name}.{k}" if k else layer.name for k in range(len(part))]
        given.append(replace(layer, tensors=tuple(zip(names, reversed(part), strict=True))))
    return given


def _count(sent: StepCollective) -> int | None:
    """Tensors of a gather, where our own traces say: ``conv1.weight and 48 more``."""
    words = sent.label.split(" ")[1:]
    return (1 + int(words[2]) if len(words) > 2 else 1) if words else None


def _layers_of_gathers(
    order: Sequence[ReplayedLayer], recognised: Recognised, step: StepWork
) -> list[list[int]]:
    """Layers of each gather: from the one that its name says on, else from where it was there."""
    named = [_layer_named(order, sent) for sent in recognised.units]
    begins = [begin for begin in named if begin is not None]
    if len(begins) < len(named) or any(b <= a for a, b in pairwise(begins)):
        begins = _timed(order, recognised.units, step)
    return [
        [*range(begin, max(end, begin + 1))]
        for begin, end in zip(begins, [*begins[1:], len(order)], strict=True)
    ]


def _timed(
    order: Sequence[ReplayedLayer], gathers: Sequence[StepCollective], step: StepWork
) -> list[int]:
    """Index of the layer that uses the parameters of each gather first.

    That is by the kernel which waited for it. Without one it is not before it was there, and as far
    on as those before it have elements.
    """
    ahead = step.phase == FORWARD
    clock = np.concatenate([[0.0], np.cumsum(np.where(ahead, step.busy + step.idle, 0.0))])
    layers = np.concatenate([[0.0], np.cumsum([layer.forward for layer in order])])
    sizes = np.array([elements_of(sent) for sent in gathers], float)
    share = np.concatenate([[0.0], np.cumsum(sizes)[:-1]]) / max(sizes.sum(), 1.0)
    there = np.array([clock[sent.until] for sent in gathers]) / (clock[-1] or 1.0)
    behind = np.minimum([sent.until for sent in gathers], len(step.waits) - 1)
    waited = step.waits[behind] > SLACK * clock[-1]
    at = np.where(waited, there, np.maximum(share, there)) * layers[-1]
    chosen = list[int]()
    for instant in at:
        nearest = int(np.abs(layers[:-1] - instant).argmin())
        chosen.append(min(max(nearest, chosen[-1] + 1 if chosen else 0), len(order) - 1))
    return chosen


def _layer_named(order: Sequence[ReplayedLayer], sent: StepCollective) -> int | None:
    """The layer whose parameter a gather is named after."""
    words = sent.label.split(" ")[1:2]
    name = words[0].rpartition(".")[0] if words else ""
    return next((i for i, layer in enumerate(order) if layer.name == name), None)


# Layers -------------------------------------------------------------------------------------------

MAX_LAYERS = 64  # layers that a trace without gradients' readiness is cut into


LOST = 1e-3  # share of a step's gradients that may lack copies


def layers_of(
    step: StepWork,
    ready: Sequence[float],
    recognised: Recognised,
    itemsize: int,
    elements: int | None = None,
) -> list[ReplayedLayer]:
    """Cut a step into layers.

    Parameters
    ----------
    step : StepWork
        A typical one.
    ready : sequence of float
        When each gradient became ready on the host, by the trace's clock [s]; empty if it does not
        say.
    recognised : Recognised
        The strategy, with what its collectives tell of sizes.
    itemsize : int
        Bytes of a gradient's element.
    elements : int, optional
        Of all gradients, where no collective tells them.

    Returns
    -------
    list of Layer
        In the order of backward.
    """
    micros = micro_steps(step)
    last, times = micros[-1], _times(step, micros)
    back = last[step.phase[last] == BACKWARD]
    if not len(back):
        back = last[-1:]
    named = any(step.names[i].startswith("backward ") for i in back.tolist())
    if named:
        layers = _named_layers(step, last, times, recognised.sharded == "units")
    else:
        layers = _cut(step, last, back, times, ready, recognised)
    if elements is not None:
        return with_even_tensors(layers, elements)
    if recognised.sharded == "parameters":
        return by_fetches(layers, recognised, step)
    return with_tensors(layers, recognised, itemsize, named)


class BusyTimes:
    """Busy and idle time of the kernels of a micro-step, as means over all of them [s]."""

    def __init__(self, busy: Floats, idle: Floats, products: Floats) -> None:
        self.busy, self.idle, self.products = busy, idle, products

    def of(self, at: Ints) -> tuple[float, float, float]:
        """Busy time, what the host makes of it, and the part of products."""
        busy, idle = float(self.busy[at].sum()), float(self.idle[at].sum())
        return busy, busy + idle if idle > 1e-9 * busy else 0.0, float(self.products[at].sum())


def _times(step: StepWork, micros: Sequence[Ints]) -> BusyTimes:
    """Times of the last micro-step's kernels, scaled to what an average one takes."""
    idle = step.idle.copy()
    idle[0] = 0.0  # before the step: the host's
    busy, last = step.busy.copy(), micros[-1]
    for phase in (FORWARD, BACKWARD):
        mine = last[step.phase[last] == phase]
        all_of_it = np.concatenate([micro[step.phase[micro] == phase] for micro in micros])
        for column in (busy, idle):
            own = column[mine].sum()
            factor = column[all_of_it].sum() / len(micros) / own if own else 1.0
            column[mine] = column[mine] * factor
    return BusyTimes(busy, idle, busy * np.array([is_product(name) for name in step.names]))


def _named_layers(
    step: StepWork, last: Ints, times: BusyTimes, sharded: bool
) -> list[ReplayedLayer]:
    """Layers of our own traces: what follows a layer's kernel goes with it."""
    in_forward, in_backward = dict[str, list[int]](), dict[str, list[int]]()
    parts = {"forward": in_forward, "backward": in_backward}
    label, kind = "", "forward"
    for i in last.tolist():
        word, _, rest = step.names[i].partition(" ")
        if word in parts:
            kind, label = word, rest
        if not label:  # before the first layer
            label = next(
                (n.partition(" ")[2] for n in step.names if n.startswith("forward ")), "model"
            )
        parts[kind].setdefault(label, []).append(i)
    named = []
    for name in dict.fromkeys([*reversed(in_forward), *in_backward]):
        ahead = np.array(in_forward.get(name, []), dtype=np.int64)
        back = np.array(in_backward.get(name, []), dtype=np.int64)
        forward, forward_host, some = times.of(ahead)
        backward, backward_host, more = times.of(back)
        whole = forward + backward
        named.append(
            ReplayedLayer(
                name,
                forward,
                backward,
                forward_host,
                backward_host,
                (some + more) / whole if whole else 0.0,
                int(back[-1]) + 1 if len(back) else 0,
                () if sharded else tuple(_copied(step, back)),
            )
        )
    return named


def _copied(step: StepWork, back: Ints) -> list[tuple[str, int]]:
    """Tensors that our own traces show on their way into a bucket: read and written once."""
    copies = []
    for i in back.tolist():
        name, nbytes = step.names[i].removeprefix(COPIED).strip(), step.nbytes[i]
        if step.names[i].startswith(COPIED) and nbytes == nbytes and name != "gradients":
            copies.append((name, int(nbytes) // 2))
    return copies


def _cut(
    step: StepWork,
    last: Ints,
    back: Ints,
    times: BusyTimes,
    ready: Sequence[float],
    recognised: Recognised,
) -> list[ReplayedLayer]:
    """Layers of other traces: backward between gradients, or into equal numbers of kernels."""
    first = int(back[0])
    copied = _copies(step, back, recognised)
    rank = np.argsort(np.argsort(step.launched[back], kind="stable"), kind="stable")
    places = [first + int((step.launched[back] < at).sum()) for at in ready]
    places = [place for place in places if place > first]
    if copied:
        places = [place for place, _ in copied]
    if not places:
        num = min(MAX_LAYERS, len(back))
        places = [first + round((k + 1) * len(back) / num) for k in range(num)]
    ends = {*places, first + len(back)}
    if recognised.sharded == "units":
        ends |= {min(max(sent.after, first + 1), first + len(back)) for sent in recognised.buckets}
    ahead = np.setdiff1d(last[step.phase[last] == FORWARD], back)
    forward, forward_host, forward_products = times.of(ahead)
    begin, layers = first, list[ReplayedLayer]()
    total = sum(times.of(back)[:1]) or 1.0
    for number, end in enumerate(sorted(ends)):
        mine = back[(rank >= begin - first) & (rank < end - first)]
        busy, host, products = times.of(mine)
        part = busy / total
        whole = busy + forward * part
        count = places.count(end)
        name = f"layer{len(ends) - number}"
        sizes = [nbytes for place, nbytes in copied if place == end] or [0] * count
        layers.append(
            ReplayedLayer(
                name,
                forward * part,
                busy,
                forward_host * part,
                host,
                (products + forward_products * part) / whole if whole else 0.0,
                end,
                tuple((f"{name}.{i}" if i else name, size) for i, size in enumerate(sizes)),
            )
        )
        begin = end
    return layers


def _copies(step: StepWork, back: Ints, recognised: Recognised) -> list[tuple[int, int]]:
    """Copies of gradients into buckets in our own traces: place, and bytes.

    None where they do not make up the buckets, but for `LOST` of them, which are too short to be
    seen: real traces show these copies as kernels without a size.
    """
    copies = [i for i in back.tolist() if step.names[i].startswith(COPIED)]
    nbytes = [int(step.nbytes[i]) for i in copies if step.nbytes[i] == step.nbytes[i]]
    whole = sum(whole_nbytes(sent) for sent in recognised.buckets)
    off = np.abs(np.cumsum(nbytes) - whole)
    if recognised.sharded == "units" or not len(off) or not whole or off.min() > LOST * whole:
        return []
    into = int(off.argmin()) + 1
    return [(i + 1, size) for i, size in zip(copies[:into], nbytes[:into], strict=True)]


# Text ---------------------------------------------------------------------------------------------

COLUMNS = (
    "name",
    "forward_us",
    "backward_us",
    "gradient_bytes",
    "forward_host_us",
    "backward_host_us",
    "products",
    "buffer_bytes",
    "counter_bytes",
)

US = 1e6


def text_of(
    layers: Sequence[ReplayedLayer], itemsize: int, buffers: tuple[int, int], about: str
) -> str:
    """Write the table.

    Parameters
    ----------
    layers : sequence of Layer
        In the order of backward.
    itemsize : int
        Bytes of a gradient's element.
    buffers : (int, int)
        Bytes of the model's buffers, and of its counters; the first line has them.
    about : str
        A comment.
    """
    lines = list[list[str]]()
    seen = dict[str, int]()
    for layer in layers:
        tensors = layer.tensors or ((layer.name, 0),)
        for number, (name, elements) in enumerate(tensors):
            timed = not number
            lines.append(
                [
                    _fresh(name, seen),
                    _us(layer.forward) if timed else "0",
                    _us(layer.backward) if timed else "0",
                    str(elements * itemsize),
                    _us(layer.forward_host) if timed else "0",
                    _us(layer.backward_host) if timed else "0",
                    f"{min(layer.products, 1.0):.4g}" if timed else "0",
                    "0",
                    "0",
                ]
            )
    lines.reverse()  # forward's order
    lines[0][-2:] = str(buffers[0]), str(buffers[1])
    used = [k for k in range(len(COLUMNS)) if k < 4 or any(line[k] != "0" for line in lines)]
    rows = [",".join(line[k] for k in used) for line in (list(COLUMNS), *lines)]
    return "\n".join([f"# {about}", *rows]) + "\n"


def _us(seconds: float) -> str:
    return f"{seconds * US:.9g}"


def _fresh(name: str, seen: dict[str, int]) -> str:
    """The name, or with a number where it was there before; without what CSV and keys use."""
    name = name.replace(",", ";").replace('"', "'").strip() or "layer"
    seen[name] = seen.get(name, 0) + 1
    return name if seen[name] == 1 else _fresh(f"{name}~{seen[name]}", seen)
