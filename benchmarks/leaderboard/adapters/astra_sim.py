"""ASTRA-sim's published rules: its analytical network without congestion, in closed form.

A message over ``h`` links takes ``h`` latencies and its bytes over a link's bandwidth; through a
switch it is two links. A collective is a ring inside nodes, and between them halving and doubling
where their number is a power of two, else a ring, too.
Steps are what its workload layer does with them: a collective per bucket or block, one at a time,
first come first served, beside backward.

References
----------
Won et al., "ASTRA-sim2.0: modeling hierarchical networks and disaggregated systems for large-model
training at scale", ISPASS 2023; github.com/astra-sim/astra-network-analytical @ 599a047,
``congestion_unaware``; github.com/astra-sim/astra-sim @ 7c77518, ``native_collectives/``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from benchmarks.leaderboard.adapters.figures import device_time
from benchmarks.leaderboard.adapters.shares import Shares, Sharing
from benchmarks.leaderboard.points import Point

FORWARD = 1 / 3
"""Share of forward and backward."""

AS_GIVEN: Shares = (1.0, 1.0)
"""Its links have the bandwidth that they are given."""

REPLICATED = ("ddp", "horovod", "apex")
SHARDED = ("fsdp1", "fsdp")

Seconds = Callable[[str, float], float | None]
"""Time of a collective of so many bytes [s]."""


def message(nbytes: float, links: int, latency: float, bandwidth: float) -> float:
    """Time of one message [s]."""
    return links * latency + nbytes / bandwidth


def ring(name: str, nbytes: float, n: int, links: int, latency: float, bandwidth: float) -> float:
    """Time of a ring among n: ``n - 1`` rounds, for an all_reduce twice as many [s]."""
    rounds = (2 if name == "all_reduce" else 1) * (n - 1)
    return rounds * message(nbytes / n, links, latency, bandwidth)


def halving_doubling(
    name: str, nbytes: float, n: int, links: int, latency: float, bandwidth: float
) -> float:
    """Time of halving, doubling or both among n, a power of two [s]."""
    both = 2 if name == "all_reduce" else 1
    return both * sum(
        message(nbytes / 2**step, links, latency, bandwidth) for step in range(1, n.bit_length())
    )


def across(name: str, nbytes: float, n: int, links: int, latency: float, bandwidth: float) -> float:
    """Time between n nodes [s]."""
    is_power = n & (n - 1) == 0 and name != "all_to_all"
    way = halving_doubling if is_power else ring
    return way(name, nbytes, n, links, latency, bandwidth)


def collective(point: Point, name: str, nbytes: float, shares: Shares = AS_GIVEN) -> float | None:
    """Time of a collective over both dimensions [s]; None of a kind that there is not."""
    local, nodes = point["ranks_per_node"], point["nodes"]
    inside, between = _inside(point, shares), _between(point, shares)
    if name == "sendrecv":
        return message(nbytes, *(between if nodes > 1 else inside))
    if name not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        return None
    if nodes == 1:
        return ring(name, nbytes, local, *inside)
    if local == 1:
        return across(name, nbytes, nodes, *between)
    if name == "all_to_all":
        return ring(name, nbytes, local, *inside) + across(name, nbytes, nodes, *between)
    both = 2 if name == "all_reduce" else 1
    within = both * ring("all_gather", nbytes, local, *inside)
    return within + across(name, nbytes / local, nodes, *between)


def _inside(point: Point, shares: Shares) -> tuple[int, float, float]:
    bandwidth = (point["intra_bandwidth"] or 1.0) * shares[0]
    return 1, point["intra_latency_s"], bandwidth


def _between(point: Point, shares: Shares) -> tuple[int, float, float]:
    """Nodes are joined by a switch, two links away; a rank has its part of the cards."""
    bandwidth = (point["inter_bandwidth"] or 1.0) / point["ranks_per_node"] * shares[1]
    return 2, point["inter_latency_s"] / 2, bandwidth


def replicated(point: Point, micro_step: float, seconds: Seconds) -> float | None:
    """A step of DDP and its like: buckets of equal size, ready at equal distances [s]."""
    nbytes, cap = point["gradient_bytes"], point["bucket_bytes"]
    count = 1 if cap is None else point["tensors"] if cap == 0 else ceil(nbytes / cap)
    each = seconds("all_reduce", nbytes / count)
    if each is None:
        return None
    backward = (1 - FORWARD) * micro_step
    # The first to be ready starts, then either backward or the collectives are in front.
    done = max(backward / count + count * each, backward + each)
    if not point["options"].get("overlap", True):
        done = backward + count * each
    return float(micro_step * point["grad_accum"] - backward + done)


def sharded(point: Point, micro_step: float, seconds: Seconds) -> float | None:
    """A step of FSDP: a block's weights are gathered while the block before computes [s]."""
    blocks = point["blocks"]
    gather = seconds("all_gather", point["parameter_bytes"] / blocks)
    scatter = seconds("reduce_scatter", point["gradient_bytes"] / blocks)
    if gather is None or scatter is None:
        return None
    forward, backward = FORWARD * micro_step / blocks, (1 - FORWARD) * micro_step / blocks
    again = 0.0 if point["options"].get("sharding_strategy") == "SHARD_GRAD_OP" else gather
    first = gather + (blocks - 1) * max(forward, gather) + forward
    then = (blocks - 1) * max(backward, again + scatter) + backward + scatter
    return float(point["grad_accum"] * (first + then))


def overlapped(point: Point, shown: Sequence[Point], seconds: Seconds) -> float | None:
    """Time of a point by the times of its collectives [s]; None where the rules say nothing."""
    if point["kind"] == "collective":
        return seconds(point["collective"], point["nbytes"])
    compute = device_time(point, shown)
    if compute is None or point["ranks"] == 1:
        return compute
    micro_step = compute / point["grad_accum"]
    if point["strategy"] in REPLICATED:
        return replicated(point, micro_step, seconds)
    return sharded(point, micro_step, seconds) if point["strategy"] in SHARDED else None


class AstraSim(Sharing):
    """See the module."""

    name = "ASTRA-sim's rules"
    published = AS_GIVEN
    about = (
        "messages of hops and bytes, rings inside nodes, halving and doubling between them; "
        "collectives in order of issue, overlapped with backward; catalogue latencies, bandwidths"
        " fitted to the visible points, or the catalogue's without any"
    )
    missing = (
        "host time, jitter, copies, protocols, compute slowed down by collectives, congestion, "
        "HSDP, DataParallel, broadcast; its kernel times are not needed, since the time of one "
        "device is given. Buckets are of equal size"
    )

    def time(self, point: Point, shares: Shares, shown: Sequence[Point]) -> float | None:
        """Time of a point where links have such shares of their bandwidth [s]."""

        def seconds(name: str, nbytes: float) -> float | None:
            return collective(point, name, nbytes, shares)

        return overlapped(point, shown, seconds)
