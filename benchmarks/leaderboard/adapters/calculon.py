"""Calculon's published rules of data parallelism and its networks.

References
----------
Isaev, McDonald, Dennison and Vuduc, "Calculon: a methodology and tool for high-level co-design of
systems and large language models", SC 2023; github.com/calculon-ai/calculon @ caa4b11:
``calculon/network.py`` (a network), ``calculon/llm/llm.py`` (what overlaps),
``systems/a100_80g.json`` and ``systems/h100_80g_nvl8.json`` (latencies, efficiencies, factors).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.leaderboard.adapters.figures import device_time
from benchmarks.leaderboard.adapters.shares import Shares, Sharing
from benchmarks.leaderboard.points import Point

EFFICIENCY: Shares = (0.65, 0.9)
"""Of a network inside nodes, and between them, in the published systems."""

LATENCY: Shares = (10e-6, 20e-6)
"""Of an operation on either [s]."""

PROCESSOR_USAGE: Shares = (0.15, 0.02)
"""Share of compute that an operation on either costs while both go on."""

BACKWARD = 2 / 3
"""Share of forward and backward."""


class Factor(NamedTuple):
    """An operation of S bytes among n moves ``scalar S (1 + offset / n)`` bytes."""

    scalar: float
    offset: float


RING = {
    "all_reduce": Factor(2, -1),
    "all_gather": Factor(1.5, -1),
    "reduce_scatter": Factor(1.5, -1),
    "sendrecv": Factor(1, 0),
}
"""NVLink in ``a100_80g.json``; also taken for PCIe and TCP, of which no system is published."""

NVLS = {
    "all_reduce": Factor(1, 1),
    "all_gather": Factor(1, 0),
    "reduce_scatter": Factor(1, 0),
    "sendrecv": Factor(1, 0),
}
"""NVLink in ``h100_80g_nvl8.json``, whose switches add."""

FABRIC = {name: Factor(1, 0) for name in RING}
"""Between nodes in both systems: switches that add."""

ADDING_SWITCHES = ("h100", "h200", "b200", "gb200")
"""Beginnings of devices whose NVLink is taken as that of the published H100."""

REPLICATED = ("ddp", "horovod", "apex")
SHARDED = ("fsdp1", "fsdp")


def operation(point: Point, name: str, nbytes: float, efficiency: Shares) -> float | None:
    """Time of an operation: its latency, then its bytes at the network's efficiency [s].

    One network carries all of it: that inside a node for the ranks of one, else that between
    nodes, with all the cards of a node, for no other group uses them, but for what goes to a single
    rank.
    """
    tier = int(point["nodes"] > 1)
    factors = _factors(point)
    if name not in factors:
        return None
    bandwidth = point["inter_bandwidth" if tier else "intra_bandwidth"]
    if tier and name == "sendrecv":
        bandwidth /= point["ranks_per_node"]
    scalar, offset = factors[name]
    moved = scalar * nbytes * (1 + offset / point["ranks"])
    return float(LATENCY[tier] + moved / (bandwidth * efficiency[tier]))


def _factors(point: Point) -> dict[str, Factor]:
    if point["nodes"] > 1:
        return RING if point["network"] == "tcp" else FABRIC
    adds = point["peer"] == "nvlink" and (point["device"] or "").startswith(ADDING_SWITCHES)
    return NVLS if adds else RING


def exposed(point: Point, block: float, backward: float) -> float:
    """What a step waits for data parallelism: the last block's, and what does not fit [s].

    Parameters
    ----------
    point : Point
        A step.
    block : float
        Time of the operations for a block [s].
    backward : float
        Of a micro-batch [s].
    """
    blocks, usage = point["blocks"], PROCESSOR_USAGE[int(point["nodes"] > 1)]
    if not point["options"].get("overlap", True):
        return float(blocks * block)
    per_block = backward / blocks
    too_much = (blocks - 1) * (block - per_block) + per_block * usage
    return block + float(too_much if too_much > 0 else (blocks - 1) * block * usage)


class Calculon(Sharing):
    """See the module."""

    name = "Calculon's rules"
    published = EFFICIENCY
    about = (
        "latency and bytes over a network's bandwidth and efficiency; data parallelism block by "
        "block, overlapped with backward; published latencies and factors, efficiencies fitted to"
        " the visible points, or as published without any"
    )
    missing = (
        "host time, jitter, buckets, copies, gathers of FULL_SHARD (those of its sharded "
        "optimizer are used), HSDP, DataParallel, all_to_all, broadcast; its kernel times are not"
        " needed, since the time of one device is given. Published for transformers; other models"
        " are split into their repeated blocks"
    )

    def time(self, point: Point, efficiency: Shares, shown: Sequence[Point]) -> float | None:
        """Time of a point with such efficiencies [s]."""
        if point["kind"] == "collective":
            return operation(point, point["collective"], point["nbytes"], efficiency)
        compute = device_time(point, shown)
        if compute is None or point["ranks"] == 1:
            return compute
        if point["strategy"] not in (*REPLICATED, *SHARDED):
            return None
        names = ["all_reduce"]
        if point["strategy"] in SHARDED:
            names = ["reduce_scatter", "all_gather"]
        nbytes = point["gradient_bytes"] / point["blocks"]
        each = [operation(point, name, nbytes, efficiency) for name in names]
        block = sum(one for one in each if one is not None)
        return compute + exposed(point, block, BACKWARD * compute / point["grad_accum"])
