"""How the time grows with the ranks: powers of n, fitted on log-log axes.

    python -m benchmarks.growth

CPU time of everything in this process: cluster, routes, plan, the choice of the clock, and the
clock itself. Each is the least of several runs, none of which finds a plan that another one kept.
What a run costs at any n flattens the fit over all sizes, so that the one over the larger half of
them must reach the target too; of halving and doubling against n log2 n, which its messages are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

import simdp
from benchmarks.layers import DEVICE, LINK, default_layers, profile_scenario, write_layers
from benchmarks.table import Row, show
from simdp.cluster import Cluster
from simdp.collectives import ALL_REDUCE
from simdp.engine.clocks import vector
from simdp.engine.clocks.clock import clock_for
from simdp.engine.network import NetworkRoutes
from simdp.engine.ops import ClockOp, ClockWait, ComputeWork, Launch
from simdp.engine.slowdown import Slowdown
from simdp.results.trace import TraceBuilder
from simdp.scenario import checked
from simdp.scenario.placement import layout

NBYTES = 25e6
SIZES = tuple(2**k for k in range(8, 15))
LARGER = slice(3, None)
LIMIT = 1.1
REPEATS = 5
LEAST = 0.05
"""Runs are repeated until they take so long together [s], so that no clock is too coarse."""

Run = Callable[[int], None]
Growth = Callable[[int], float]


def flat(world_size: int, topology: str) -> dict[str, Any]:
    return {"world_size": world_size, "device": DEVICE, "topology": topology, "link": LINK}


def nodes(world_size: int) -> dict[str, Any]:
    between = {"topology": "switch", "link": "ib-hdr", "links_per_node": 8}
    return {**flat(world_size, "switch"), "devices_per_node": 8, "inter_node": between}


def all_reduce(kind: str, raw: dict[str, Any]) -> None:
    """One all_reduce of ranks that come at different times, with nothing known beforehand."""
    where = Cluster.model_validate(raw)
    algorithm, around, network = ALL_REDUCE[kind](kind=kind), layout(where), NetworkRoutes(where)
    plan = algorithm.build(around, algorithm.cut(around, NBYTES), 0)  # `plan` would keep it
    came = np.random.default_rng(0).random(where.world_size) * 1e-3
    script: list[ClockOp] = [
        ComputeWork(0, "forward", "work", came),
        Launch(0, "call", 0, plan, NBYTES, False),
        ClockWait((0,)),
    ]
    clock = clock_for(network, [plan], Slowdown(where, 0), TraceBuilder())
    if clock.fabric != "vector":
        raise RuntimeError(f"{kind} should need no events, but {clock.why}")
    clock.play(script)


def unequal_ring(world_size: int) -> None:
    """A ring in which no link is like another one, which is played round by round."""
    random, where = np.random.default_rng(0), Cluster.model_validate(flat(world_size, "ring"))
    plan = ALL_REDUCE["ring"](kind="ring").plan(world_size, NBYTES)
    connections = NetworkRoutes(where).of_part(plan.everything[0])
    per_chunk = NBYTES / world_size / connections.bandwidth
    pace = vector.TransferPace(connections.alpha, per_chunk * (1 + random.random((world_size, 1))))
    vector.ring(plan, connections, pace, np.zeros((world_size, 1)), None)


def ddp_step(folder: Path) -> Run:
    """A whole step of ResNet-50, overlapped, where every rank has its own pace."""
    write_layers(folder / "layers.csv", default_layers())
    jitter = [{"kind": "lognormal", "sigma": 0.05}]

    def run(n: int) -> None:
        simdp.simulate(checked(profile_scenario("layers.csv", n, stragglers=jitter), folder))

    return run


def seconds(run: Run, n: int, repeats: int) -> float:
    """Least CPU time of a run [s]."""
    begin = process_time()
    run(n)
    rounds = max(int(LEAST / max(process_time() - begin, 1e-6)), 1)
    times = []
    for _ in range(repeats):
        begin = process_time()
        for _ in range(rounds):
            run(n)
        times.append((process_time() - begin) / rounds)
    return min(times)


def exponent(growth: list[float], times: list[float]) -> float:
    """Slope of a line through the points on log-log axes."""
    return float(np.polyfit(np.log(growth), np.log(times), 1)[0])


def row(what: str, run: Run, work: Growth = float, name: str = "n") -> Row:
    """Fit over all sizes against n, and over the larger ones against the work that there is."""
    times = [seconds(run, n, REPEATS) for n in SIZES]
    over_all = exponent([*map(float, SIZES)], times)
    over_larger = exponent([work(n) for n in SIZES[LARGER]], times[LARGER])
    figure = f"n^{over_all:.2f}, then {name}^{over_larger:.2f}, to {1e3 * times[-1]:.0f} ms"
    return f"growth: {what}", figure, f"{LIMIT}", max(over_all, over_larger) <= LIMIT


def row_by_rounds() -> Row:
    """The ring without a closed form has 2 (n - 1) rounds of n messages: no target."""
    times = [seconds(unequal_ring, n, 1) for n in SIZES]
    slope = exponent([*map(float, SIZES[LARGER])], times[LARGER])
    figure = f"then n^{slope:.2f}, to {1e3 * times[-1]:.0f} ms"
    return "growth: ring, unequal links", figure, "-", True


def rows() -> Iterator[Row]:
    yield row("ring", lambda n: all_reduce("ring", flat(n, "ring")))
    yield row("ring, nodes of 8", lambda n: all_reduce("ring", nodes(n)))
    yield row("hierarchical", lambda n: all_reduce("hierarchical", nodes(n)))
    yield row(
        "halving_doubling",
        lambda n: all_reduce("halving_doubling", flat(n, "switch")),
        lambda n: n * np.log2(n),
        "(n log n)",
    )
    with tempfile.TemporaryDirectory() as folder:
        yield row("DDP step, jitter", ddp_step(Path(folder)))
    yield row_by_rounds()


def main() -> int:
    return show(f"growth from {SIZES[0]} to {SIZES[-1]} ranks, CPU time", list(rows()))


if __name__ == "__main__":
    raise SystemExit(main())
