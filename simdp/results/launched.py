"""What a run's spans consist of: kernels with the waits for their launches, and what is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints


class Kernels(NamedTuple):
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


WHOLE = Kernels((0.0, 1.0), False)
"""Work of which nobody knows the kernels: it is a single one, which waits for nothing."""


def kernels_of(idle: Floats, busy: Floats) -> Kernels:
    """Make kernels of what each waits for its launch, and takes [s]; none of no time."""
    total = float(idle.sum() + busy.sum())
    if not total:
        return WHOLE
    edges = np.cumsum(np.stack([idle, busy], axis=1).ravel()) / total
    edges[-1] = 1.0
    return Kernels(tuple(np.minimum(edges, 1.0).tolist()), bool(idle.any()))


class Sent(NamedTuple):
    """How a collective is carried out.

    Attributes
    ----------
    algorithm, protocol : str
        Which serve it, as simdp's kinds; empty where nobody knows.
    group : str
        Name of the process groups that it is of; empty for all ranks.
    dtype : str
        Of what is sent, such as ``"float32"``; empty where nobody knows.
    """

    algorithm: str = ""
    protocol: str = ""
    group: str = ""
    dtype: str = ""


@dataclass(frozen=True)
class Launched:
    """What the spans of a run stand for.

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
        What the host needs for a launch [s].
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

    kernels: Mapping[tuple[str, str], tuple[list[Kernels], Ints]] = field(default_factory=dict)
    layers: Mapping[str, str] = field(default_factory=dict)
    sent: Mapping[tuple[str, float], Sent] = field(default_factory=dict)
    groups: Mapping[str, Ints] = field(default_factory=dict)
    launch: Floats | None = None
    memory: Floats | None = None
    local_size: int = 1
    runs_ahead: bool = False
    is_graph: bool = False
    host_copies: frozenset[str] = frozenset()
    updates_on_host: bool = False

    def of(self, rank: int, activity: str, name: str) -> Kernels:
        """Tell the kernels of a rank's span; a single one where nobody knows."""
        found = self.kernels.get((activity, name))
        return WHOLE if found is None else found[0][found[1][rank]]
