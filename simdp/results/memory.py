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
"""Parts of memory.

``optimizer_state`` holds master weights too; ``buckets`` are flat buffers of gradients;
``gathered`` are temporary parameters of other ranks, or copies of a root's; ``outputs`` are the
model's outputs, with gradients, also where those of all ranks are gathered; ``inputs`` is the
micro-batch; ``buffers`` are tensors of the model that are not trained; ``temporary`` is scratch
memory of a computation.
"""

NAMED = ("parameters", "gradients", "optimizer_state", "buckets", "activations")
"""Parts with their own name in ``memory_bytes`` of result.json; the rest is ``other``."""


class Holding(NamedTuple):
    """An allocation or a release of memory by ranks."""

    ranks: Ints
    step: int  # -1 is the setup
    part: int  # index in `MEMORY_PARTS`
    at: Floats  # instant [s]
    nbytes: float | Floats  # allocated by each rank; negative if released


def summed(parts: Floats) -> dict[str, int]:
    """Return ``memory_bytes`` of result.json, from the bytes of each of `MEMORY_PARTS`."""
    named = {name: int(parts[MEMORY_PARTS.index(name)]) for name in NAMED}
    rest = [i for i, name in enumerate(MEMORY_PARTS) if name not in NAMED]
    return {**named, "other": int(parts[rest].sum())}


class MemoryUsage(NamedTuple):
    """Memory of one or several ranks together, after each allocation or release."""

    step: Ints  # shape `(num_changes,)`: -1 is the setup
    at: Floats  # shape `(num_changes,)`: instants, rising [s]
    kept: Floats  # shape `(num_changes, len(MEMORY_PARTS))`: memory by part [bytes]

    @property
    def total(self) -> Floats:
        """Total memory, shape `(num_changes,)` [bytes]."""
        total: Floats = self.kept.sum(axis=1)
        return total

    def peak(self) -> int:
        """Return the place of the largest total: of equal ones the first in the last such step."""
        total = self.total
        highest = np.flatnonzero(total >= total.max() * (1 - ROUNDING))
        return int(highest[self.step[highest] == self.step[highest].max()][0])


ROUNDING = 1e-12  # relative rounding difference of sums of the same sizes in different orders


def usage(holdings: Sequence[Holding], ranks: Sequence[int]) -> MemoryUsage:
    """Add up allocations and releases of ranks, change by change.

    Parameters
    ----------
    holdings : sequence of Holding
        In the order of the script on each rank.
    ranks : sequence of int
        Ranks that share a device, or a single one.
    """
    chosen = np.array(ranks, dtype=np.int64)
    rows: list[tuple[int, float, int, float]] = []
    known: dict[int, list[int]] = {}  # by the array of ranks, which many holdings share
    for held in holdings:
        key = id(held.ranks)
        if key not in known:
            known[key] = np.flatnonzero(np.isin(held.ranks, chosen)).tolist()
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
    """Consecutive kernels of a piece of work, as fractions of its time."""

    # ends of the launch delay of the first kernel, of that kernel, and so on, as fractions of the
    # work's time, ascending to 1
    edges: tuple[float, ...]
    has_idle: bool  # whether the device waits for any launch


WHOLE = KernelSequence((0.0, 1.0), False)
"""Work with unknown kernels: a single one without launch delay."""


def kernels_of(idle: Floats, busy: Floats) -> KernelSequence:
    """Build kernels from launch delays and durations [s]; none of zero length."""
    total = float(idle.sum() + busy.sum())
    if not total:
        return WHOLE
    edges = np.cumsum(np.stack([idle, busy], axis=1).ravel()) / total
    edges[-1] = 1.0
    return KernelSequence(tuple(np.minimum(edges, 1.0).tolist()), bool(idle.any()))


class CollectiveTraffic(NamedTuple):
    """Algorithm, protocol, group and dtype of a collective."""

    # algorithm, protocol: kinds of simdp; empty if unknown
    algorithm: str = ""
    protocol: str = ""
    group: str = ""  # name of its process groups; empty for all ranks
    dtype: str = ""


@dataclass(frozen=True)
class LaunchedKernels:
    """Kernels that the spans of a run consist of."""

    # by activity and name: different sequences, and the one of each rank. They are those of a full
    # micro-batch; shorter ones, and slower ranks, scale them.
    kernels: Mapping[tuple[str, str], tuple[list[KernelSequence], Ints]] = field(
        default_factory=dict
    )
    # kind of the layer, or of the loss, by name, in the order of forward
    layers: Mapping[str, str] = field(default_factory=dict)
    # by name and size [bytes] of a collective
    sent: Mapping[tuple[str, float], CollectiveTraffic] = field(default_factory=dict)
    # shape `(num_groups, group size)`: process groups of less than all ranks, by name
    groups: Mapping[str, Ints] = field(default_factory=dict)
    launch: Floats | None = None  # shape `(world_size,)`: host time of a launch [s]
    memory: Floats | None = None  # shape `(world_size,)`: of the devices [bytes]
    local_size: int = 1
    # whether the host launches kernels ahead of the device
    runs_ahead: bool = False
    is_graph: bool = False  # whether one launch starts all kernels of a step's compute
    host_copies: frozenset[str] = frozenset()  # names of copies between a device and its host
    updates_on_host: bool = False  # whether the optimizer runs there

    def of(self, rank: int, activity: str, name: str) -> KernelSequence:
        """Return the kernels of a rank's span; a single one if unknown."""
        sequences = self.kernels.get((activity, name))
        return WHOLE if sequences is None else sequences[0][sequences[1][rank]]
