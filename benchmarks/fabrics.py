"""How fast the two clocks are: transfers a second, and a ring over thousands of ranks.

python -m benchmarks.fabrics
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, process_time

import numpy as np

from benchmarks.table import show
from simdp.cluster import Cluster
from simdp.collectives.base import Plan, Round, even_offsets
from simdp.collectives.closed_forms import ring_all_reduce_time
from simdp.collectives.ring import RingAllReduce
from simdp.engine.fabrics.event import EventFabric
from simdp.engine.fabrics.vector import VectorFabric
from simdp.engine.network import Network
from simdp.engine.ops import Launch, Op, Wait, Work
from simdp.engine.slowdown import Slowdown
from simdp.results.trace import TraceBuilder

NBYTES = 25e6


def cluster(world_size: int, **more: object) -> Cluster:
    link = {"alpha": "5 us", "bandwidth": "25 GB/s"}
    raw = {"world_size": world_size, "device": "a100-sxm4-80gb", "topology": "ring", "link": link}
    return Cluster.model_validate({**raw, **more})


def calls(plan: Plan, count: int, jitter: float) -> Iterator[Op]:
    """Ranks work for a random time and then communicate, again and again."""
    random = np.random.default_rng(0)
    for number in range(count):
        yield Work(0, "forward", "work", random.random(plan.world_size) * jitter)
        yield Launch(0, "call", number, plan, NBYTES, False)
        yield Wait((number,))


def transfers_per_second(where: Cluster, plan: Plan, count: int, jitter: float) -> float:
    fabric = EventFabric(Network(where), [plan], Slowdown(where, 0), TraceBuilder())
    begin = process_time()
    fabric.play(calls(plan, count, jitter))
    return fabric.num_transfers / (process_time() - begin)


def neighbours(world_size: int, distance: int, rounds: int) -> Plan:
    """Every rank sends to the one ``distance`` ahead, as often as there are rounds."""
    src = np.arange(world_size)
    one = Round(src, (src + distance) % world_size, np.zeros_like(src), False)
    return Plan("broadcast", world_size, 1, 0, lambda: iter([one] * rounds), even_offsets(1), False)


def event_rows() -> list[tuple[str, str, str, bool]]:
    plan = RingAllReduce().plan(64, NBYTES)
    lockstep = transfers_per_second(cluster(64), plan, 40, 0.0)
    nodes = cluster(
        64,
        topology="switch",
        devices_per_node=8,
        inter_node={"topology": "switch", "link": "ib-hdr"},
    )
    plan = neighbours(64, 8, 50)  # 64 flows, eight on every network card
    shared = transfers_per_second(nodes, plan, 12, 1e-3)
    return [
        (
            "event fabric, ring of 64 in lockstep, unshared",
            f"{lockstep:,.0f} transfers/s",
            "100,000",
            lockstep >= 1e5,
        ),
        (
            "event fabric, 64 jittered flows on shared links",
            f"{shared:,.0f} transfers/s",
            "20,000",
            shared >= 2e4,
        ),
    ]


def vector_run(world_size: int) -> None:
    """Time one ring all_reduce in this process; print seconds, peak memory and error."""
    plan, where = RingAllReduce().plan(world_size, NBYTES), cluster(world_size)
    fabric = VectorFabric(Network(where), Slowdown(where, 0), TraceBuilder())
    begin = perf_counter()
    end = fabric.times(plan, NBYTES, np.zeros(world_size))
    took = perf_counter() - begin
    expected = ring_all_reduce_time(NBYTES, world_size, 5e-6, 1 / 25e9)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(took, peak, abs(end[0] / expected - 1))


def vector_row(world_size: int, target: float) -> tuple[str, str, str, bool]:
    """Each in a process of its own, so that its peak memory is its own."""
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.fabrics", str(world_size)],
        check=True,
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    ).stdout
    took, peak, error = map(float, found.split())
    return (
        f"vector fabric, 25 MB ring over {world_size:,} ranks",
        f"{took:.3f} s, {peak:.0f} MB, error {error:.0e}",
        f"{target} s, 500 MB, 1e-12",
        took <= target and peak <= 500 and error <= 1e-12,
    )


def main() -> int:
    if len(sys.argv) > 1:
        vector_run(int(sys.argv[1]))
        return 0
    rows = [*event_rows(), vector_row(1024, 0.1), vector_row(16384, 10.0)]
    return show("fabrics, CPU time", rows)


if __name__ == "__main__":
    raise SystemExit(main())
