"""Memory and kernel launches of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints

# Memory -------------------------------------------------------------------------------------------

MEMORY_PARTS = (
    "parameters",
    "gradients",
    "optimizer_state",
    "buckets",
    "gathered",
    "activations",
    "outputs",
    "inputs",
    "buffers",
    "temporary",
)
"""What memory is taken for.

``optimizer_state`` holds master weights too; ``buckets`` are flat buffers of gradients; what is
``gathered`` are parameters of other ranks, for a while, or copies of a root's; ``outputs`` are
what the model makes, with gradients, also where those of all ranks are in one place; ``inputs`` is
the micro-batch; ``buffers`` are tensors of the model that are not learned; ``temporary`` is what a
computation needs beside all this.
"""

NAMED = ("parameters", "gradients", "optimizer_state", "buckets", "activations")
"""Parts with a name of their own in ``memory_bytes`` of result.json; the rest is ``other``."""


class Holding(NamedTuple):
    """Ranks take memory, or give it back.

    Attributes
    ----------
    ranks : ndarray, int64
        Ranks.
    step : int
        In which step; -1 is the setup.
    part : int
        Place in `PARTS`.
    at : ndarray, float64
        When [s].
    nbytes : float or ndarray, float64
        How much each takes; negative gives back.
    """

    ranks: Ints
    step: int
    part: int
    at: Floats
    nbytes: float | Floats


def summed(parts: Floats) -> dict[str, int]:
    """``memory_bytes`` of result.json, from the bytes of each of `PARTS`."""
    found = {name: int(parts[MEMORY_PARTS.index(name)]) for name in NAMED}
    rest = [i for i, name in enumerate(MEMORY_PARTS) if name not in NAMED]
    return {**found, "other": int(parts[rest].sum())}


class MemoryUsage(NamedTuple):
    """Memory of one or several ranks together, after each allocation or release.

    Attributes
    ----------
    step : ndarray, shape `(num_changes,)`, int64
        -1 is the setup.
    at : ndarray, shape `(num_changes,)`, float64
        Instants, rising [s].
    kept : ndarray, shape `(num_changes, len(PARTS))`, float64
        Memory from then on, part by part [bytes].
    """

    step: Ints
    at: Floats
    kept: Floats

    @property
    def total(self) -> Floats:
        """Total memory, shape `(num_changes,)` [bytes]."""
        found: Floats = self.kept.sum(axis=1)
        return found

    def peak(self) -> int:
        """Place of the largest total; of equal ones in the last step that has one, the first."""
        total = self.total
        highest = np.flatnonzero(total >= total.max() * (1 - ROUNDING))
        return int(highest[self.step[highest] == self.step[highest].max()][0])


ROUNDING = 1e-12
"""Sums of the same sizes in another order differ by no more than this part."""


def usage(holdings: Sequence[Holding], ranks: Sequence[int]) -> MemoryUsage:
    """Add up allocations and releases of ranks, change by change.

    Parameters
    ----------
    holdings : sequence of Holding
        In the order of the script on each rank.
    ranks : sequence of int
        Ranks that share a device, or a single one.

    Returns
    -------
    Usage
        Without changes where nothing is known of the ranks.
    """
    asked = np.array(ranks, dtype=np.int64)
    rows: list[tuple[int, float, int, float]] = []
    known: dict[int, list[int]] = {}  # by the array of ranks, which many holdings share
    for held in holdings:
        key = id(held.ranks)
        if key not in known:
            known[key] = np.flatnonzero(np.isin(held.ranks, asked)).tolist()
        for place in known[key]:
            nbytes = held.nbytes[place] if isinstance(held.nbytes, np.ndarray) else held.nbytes
            rows.append((held.step, float(held.at[place]), held.part, float(nbytes)))
    rows.sort(key=lambda row: row[1])  # stable: operations of a rank at one instant stay in order
    kept = np.zeros((len(rows), len(MEMORY_PARTS)))
    kept[range(len(rows)), [row[2] for row in rows]] = [row[3] for row in rows]
    return MemoryUsage(
        np.array([row[0] for row in rows], dtype=np.int64),
        np.array([row[1] for row in rows]),
        kept.cumsum(axis=0),
    )


# Launched -----------------------------------------------------------------------------------------


class KernelSequence(NamedTuple):
    """Kernels of a piece of work, one behind the other, as parts of its time.

    Attributes
    ----------
    edges : tuple of float
        Where the wait for the launch of the first kernel ends, where that kernel does, and so on:
        parts of the work's time, rising to 1.
    has_idle : bool
        Whether the device waits for any launch.
    """

    edges: tuple[float, ...]
    has_idle: bool


WHOLE = KernelSequence((0.0, 1.0), False)
"""Work of which nobody knows the kernels: it is a single one, which waits for nothing."""


def kernels_of(idle: Floats, busy: Floats) -> KernelSequence:
    """Build kernels from launch delays and durations [s]; none of zero length."""
    total = float(idle.sum() + busy.sum())
    if not total:
        return WHOLE
    edges = np.cumsum(np.stack([idle, busy], axis=1).ravel()) / total
    edges[-1] = 1.0
    return KernelSequence(tuple(np.minimum(edges, 1.0).tolist()), bool(idle.any()))


class CollectiveTraffic(NamedTuple):
    """How a collective is carried out.

    Attributes
    ----------
    algorithm, protocol : str
        Algorithms, as simdp's kinds; empty if unknown.
    group : str
        Name of the process groups that it is of; empty for all ranks.
    dtype : str
        Data type, such as ``"float32"``; empty if unknown.
    """

    algorithm: str = ""
    protocol: str = ""
    group: str = ""
    dtype: str = ""


@dataclass(frozen=True)
class LaunchedKernels:
    """Kernels that the spans of a run consist of.

    Attributes
    ----------
    kernels : dict of (str, str) to (list of Kernels, ndarray)
        By activity and name: those that differ, and which of them each rank has. They are those of
        a full micro-batch; shorter ones, and slower ranks, take their part of each.
    layers : dict of str to str
        The kind of layer behind each name, or of the loss; names in the order of forward.
    sent : dict of (str, float) to Sent
        By name and size [bytes] of a collective.
    groups : dict of str to ndarray, shape `(num_groups, group size)`, int64
        Process groups of less than all ranks, by name.
    launch : ndarray, shape `(world_size,)`
        Host time of a launch [s].
    memory : ndarray, shape `(world_size,)`
        Of the devices [bytes].
    local_size : int
        Ranks of a node.
    runs_ahead : bool
        Whether the host launches kernels while the device works on earlier ones.
    is_graph : bool
        Whether one launch starts all kernels of a step's compute.
    host_copies : frozenset of str
        Names of copies between a device and its host.
    updates_on_host : bool
        Whether the optimizer runs there.
    """

    kernels: Mapping[tuple[str, str], tuple[list[KernelSequence], Ints]] = field(
        default_factory=dict
    )
    layers: Mapping[str, str] = field(default_factory=dict)
    sent: Mapping[tuple[str, float], CollectiveTraffic] = field(default_factory=dict)
    groups: Mapping[str, Ints] = field(default_factory=dict)
    launch: Floats | None = None
    memory: Floats | None = None
    local_size: int = 1
    runs_ahead: bool = False
    is_graph: bool = False
    host_copies: frozenset[str] = frozenset()
    updates_on_host: bool = False

    def of(self, rank: int, activity: str, name: str) -> KernelSequence:
        """Kernels of a rank's span; a single one if unknown."""
        found = self.kernels.get((activity, name))
        return WHOLE if found is None else found[0][found[1][rank]]
