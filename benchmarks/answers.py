"""Are the answers right? Fixed problems against closed forms, beside what ASTRA-sim says.

The problems: 25e6 bytes on links of 50e9 bytes/s and 500 ns. The figures of ASTRA-sim are those of
its analytical back end, congestion-unaware. They differ from the closed forms by 1.5 ns a round at
most: ASTRA-sim counts in whole nanoseconds and whole bytes, simdp in exact fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import simdp
from benchmarks.layers import (
    ALPHA,
    BANDWIDTH,
    DEVICE,
    LINK,
    Layer,
    fifo_step,
    profile_scenario,
    write_layers,
)
from benchmarks.table import Row
from simdp.cluster import Cluster
from simdp.collectives import ALL_REDUCE
from simdp.collectives.hierarchical import HierarchicalAllReduce
from simdp.engine.collective import Bench
from simdp.scenario import checked
from tests.closed_forms import (
    direct_all_reduce_time,
    halving_doubling_all_reduce_time,
    hierarchical_all_reduce_time,
    ring_all_reduce_time,
)

NBYTES = 25e6
EXACT, STEP_EXACT = 1e-9, 1e-6
"""Relative errors that an all_reduce, and a step, may have."""

STEP_SIZES = (8, 64, 256, 1024, 4096)


class Problem(NamedTuple):
    """An algorithm on a topology, with several numbers of ranks.

    Attributes
    ----------
    kind, topology : str
        Of all_reduce; on `LINK`.
    formula : callable
        The closed form: bytes, ranks, alpha and beta to seconds.
    num_links : int
        Of a route. A switch is two links of 500 ns; ASTRA-sim charges as much, 500 ns a hop.
    others : dict of int to (int or None)
        What ASTRA-sim says for each number of ranks, if it was asked [ns].
    """

    kind: str
    topology: str
    formula: Callable[[float, int, float, float], float]
    num_links: int
    others: dict[int, int | None]


PROBLEMS = (
    Problem(
        "ring",
        "ring",
        ring_all_reduce_time,
        1,
        {8: None, 64: None, 256: None, 1024: 2023495, 4096: None, 16384: None},
    ),
    Problem(
        "ring",
        "switch",
        ring_all_reduce_time,
        2,
        {8: 889015, 64: 1110439, 256: 1506541, 1024: 3046495},
    ),
    Problem(
        "halving_doubling",
        "switch",
        halving_doubling_all_reduce_time,
        2,
        {8: 881007, 64: 996382, 256: 1012104, 1024: 1019036},
    ),
    Problem(
        "direct",
        "full_mesh",
        direct_all_reduce_time,
        1,
        {8: 126003, 64: 16627, 256: 4909, 1024: 1979},
    ),
)

PER_NODE, INSIDE, ACROSS = 8, (ALPHA, 1 / 300e9), (2e-6, 1 / BANDWIDTH)
"""Alpha and beta of two levels. What ASTRA-sim answers takes 2 us from one ring to another; here
these are two links of 1 us."""

LEVELS = {8: 290223, 32: 397989, 128: 785047}
"""What ASTRA-sim says of rings of 8 that a switch joins, by their number [ns]."""

STEPS = {
    10831317: 10831331,
    11310709: 11313958,
    21726527: 21740014,
    4335408: 4335796,
    7805709: 7808958,
    18221527: 18235014,
}
"""ASTRA-sim's own ResNet-50 on 8, 64 and 256 ranks, with its compute over 100 and over 1000: the
step by its closed form, and what ASTRA-sim says [ns]."""


def flat(world_size: int, topology: str) -> Cluster:
    raw = {"world_size": world_size, "device": DEVICE, "topology": topology, "link": LINK}
    return Cluster.model_validate(raw)


def two_levels(num_nodes: int) -> Cluster:
    between = {"alpha": "1 us", "bandwidth": "50 GB/s"}
    return Cluster.model_validate(
        {
            "world_size": PER_NODE * num_nodes,
            "devices_per_node": PER_NODE,
            "device": DEVICE,
            "topology": "ring",
            "link": {"alpha": "500 ns", "bandwidth": "300 GB/s"},
            "inter_node": {"topology": "switch", "link": between, "links_per_node": PER_NODE},
        }
    )


def collective_rows() -> Iterator[Row]:
    """One all_reduce by itself, against its closed form."""
    for kind, topology, formula, num_links, others in PROBLEMS:
        for n, other in others.items():
            found = Bench(flat(n, topology)).time(ALL_REDUCE[kind](kind=kind), NBYTES).seconds
            expected = formula(NBYTES, n, num_links * ALPHA, 1 / BANDWIDTH)
            yield _row(f"{kind}, {topology}, {n}", found, expected, other, EXACT)
    levels = HierarchicalAllReduce()
    for nodes, other in LEVELS.items():
        found = Bench(two_levels(nodes)).time(levels, NBYTES).seconds
        expected = hierarchical_all_reduce_time(NBYTES, nodes, PER_NODE, INSIDE, ACROSS)
        yield _row(f"hierarchical, {nodes} rings of 8", found, expected, other, EXACT)


def step_rows(tables: Mapping[str, Sequence[Layer]], folder: Path) -> Iterator[Row]:
    """Steps of some tables of layers, by name, against `fifo_step`."""
    for name, layers in tables.items():
        write_layers(folder / "layers.csv", layers)
        for n in STEP_SIZES:
            scenario = checked(profile_scenario("layers.csv", n), folder)
            found = simdp.simulate(scenario).metrics["step_time_s"]
            expected = fifo_step(layers, n)
            other = STEPS.get(round(1e9 * expected))
            yield _row(f"step: {name}, {n}", found, expected, other, STEP_EXACT)


def _row(what: str, found: float, expected: float, other: int | None, limit: float) -> Row:
    error = abs(found / expected - 1)
    figure = f"{1e9 * found:,.1f} ns, off {error:.0e}"
    if other is not None:
        figure += f"; ASTRA-sim {100 * (1e-9 * other / expected - 1):+.2g} %"
    return what, figure, f"{limit:.0e}", error <= limit
