"""Makes the rows of a layer profile from the kernels of a step.

Our own traces name layers, and kernels of real ones belong to what lies between two gradients that
became ready: backward is cut there. Forward's time is dealt to the same layers, by name or in
proportion to their backward; all of it is there, and only what fetches parameters layer by layer
depends on where.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.studies.replay.fetched import by_fetches
from simdp.studies.replay.kernel_names import is_product
from simdp.studies.replay.phases import BACKWARD, FORWARD
from simdp.studies.replay.strategy import Recognised, whole_nbytes
from simdp.studies.replay.tensors import ReplayedLayer, evenly, with_tensors
from simdp.studies.replay.timeline import COPIED, StepWork
from simdp.studies.replay.typical import micro_steps

MAX_LAYERS = 64
"""Layers that a trace without gradients' readiness is cut into."""


LOST = 1e-3
"""Share of a step's gradients that may lack copies."""


def layers_of(
    step: StepWork,
    ready: Sequence[float],
    found: Recognised,
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
    found : Recognised
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
        layers = _named(step, last, times, found.sharded == "units")
    else:
        layers = _cut(step, last, back, times, ready, found)
    if elements is not None:
        return evenly(layers, elements)
    if found.sharded == "parameters":
        return by_fetches(layers, found, step)
    return with_tensors(layers, found, itemsize, named)


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
        all_of_it = np.concatenate([one[step.phase[one] == phase] for one in micros])
        for column in (busy, idle):
            own = column[mine].sum()
            factor = column[all_of_it].sum() / len(micros) / own if own else 1.0
            column[mine] = column[mine] * factor
    products = busy * np.array([is_product(name) for name in step.names])
    return BusyTimes(busy, idle, products)


def _named(step: StepWork, last: Ints, times: BusyTimes, sharded: bool) -> list[ReplayedLayer]:
    """Layers of our own traces: what follows a layer's kernel goes with it."""
    parts: dict[str, dict[str, list[int]]] = {"forward": {}, "backward": {}}
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
    order = [*reversed(parts["forward"])]
    order += [name for name in parts["backward"] if name not in parts["forward"]]
    found = []
    for name in order:
        ahead = np.array(parts["forward"].get(name, []), dtype=np.int64)
        back = np.array(parts["backward"].get(name, []), dtype=np.int64)
        forward, forward_host, some = times.of(ahead)
        backward, backward_host, more = times.of(back)
        whole = forward + backward
        found.append(
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
    return found


def _copied(step: StepWork, back: Ints) -> list[tuple[str, int]]:
    """Tensors that our own traces show on their way into a bucket: read and written once."""
    found = []
    for i in back.tolist():
        name, nbytes = step.names[i].removeprefix(COPIED).strip(), step.nbytes[i]
        if step.names[i].startswith(COPIED) and nbytes == nbytes and name != "gradients":
            found.append((name, int(nbytes) // 2))
    return found


def _cut(
    step: StepWork,
    last: Ints,
    back: Ints,
    times: BusyTimes,
    ready: Sequence[float],
    found: Recognised,
) -> list[ReplayedLayer]:
    """Layers of other traces: backward between gradients, or into equal numbers of kernels."""
    first = int(back[0])
    copied = _copies(step, back, found)
    rank = np.argsort(np.argsort(step.launched[back], kind="stable"), kind="stable")
    places = [first + int((step.launched[back] < at).sum()) for at in ready]
    places = [place for place in places if place > first]
    if copied:
        places = [place for place, _ in copied]
    if not places:
        num = min(MAX_LAYERS, len(back))
        places = [first + round((k + 1) * len(back) / num) for k in range(num)]
    ends = {*places, first + len(back)}
    if found.sharded == "units":
        ends |= {min(max(sent.after, first + 1), first + len(back)) for sent in found.buckets}
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


def _copies(step: StepWork, back: Ints, found: Recognised) -> list[tuple[int, int]]:
    """Copies of gradients into buckets in our own traces: place, and bytes.

    None where they do not make up the buckets, but for `LOST` of them, which are too short to be
    seen: real traces show these copies as kernels without a size.
    """
    copies = [i for i in back.tolist() if step.names[i].startswith(COPIED)]
    nbytes = [int(step.nbytes[i]) for i in copies if step.nbytes[i] == step.nbytes[i]]
    whole = sum(whole_nbytes(sent) for sent in found.buckets)
    off = np.abs(np.cumsum(nbytes) - whole)
    if found.sharded == "units" or not len(off) or not whole or off.min() > LOST * whole:
        return []
    into = int(off.argmin()) + 1
    return [(i + 1, size) for i, size in zip(copies[:into], nbytes[:into], strict=True)]
