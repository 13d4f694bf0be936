"""The event fabric against an independent simulator of max-min sharing, and so do whole runs."""

import numpy as np
import pytest
from for_each import for_each, for_some
from max_min import collective_ends
from msccl_examples import ring_all_reduce
from small_networks import between, calls, cluster
from small_scenario import CLUSTER

import simdp
from simdp.collectives import FAMILIES
from simdp.engine.clocks.event import EventFabric
from simdp.engine.clocks.transfers import FabricJob
from simdp.engine.network import NetworkRoutes
from simdp.engine.slowdown import Slowdown
from simdp.results.trace import ACTIVITIES, TraceBuilder
from simdp.scenario.placement import layout

N = 8
LINK = {"alpha": "5 us", "bandwidth": "25 GB/s"}
FAT_TREE = {"kind": "fat_tree", "ports_per_leaf": 2, "oversubscription": 2}
DRAGONFLY = {"kind": "dragonfly", "ports_per_router": 2, "routers_per_group": 2, "groups": 2}
KEYS = {
    "switch": {"topology": "switch"},
    "ring": {"topology": "ring"},
    "torus2d": {"topology": "torus2d"},
    "fat_tree": {"devices_per_node": 1, "inter_node": between(FAT_TREE)},
    "dragonfly": {"devices_per_node": 1, "inter_node": between(DRAGONFLY)},
    "nodes": {"topology": "ring", "devices_per_node": 4, "inter_node": between("switch")},
    "staged": {"topology": "pcie_tree"},
}
"""Of `cluster`, by network."""

KINDS = ["ring", "tree", "halving_doubling", "direct", "double_binary_tree", "naive", "multi_ring"]
EXACT = 1e-9


def place(name):
    keys = {"topology": "ring", **KEYS[name]}
    return cluster(N, keys.pop("topology"), **keys)


def late(seed):
    """When each rank comes: all at once, or at random instants of a few or of many transfers."""
    random = np.random.default_rng(seed)
    return random.exponential([0.0, 2e-5, 1e-3][seed % 3], N)


def event_ends(where, plan, nbytes, enter):
    """When each rank is through with a collective on the event fabric."""
    job = FabricJob(NetworkRoutes(where), {0: [plan]}, Slowdown(where, 0), TraceBuilder())
    EventFabric([job]).play([calls([(plan, nbytes)], [enter])])
    return [job.calls[0].end[rank] for rank in range(where.world_size)]


@pytest.mark.slow
@for_some("kind", KINDS, 3, first=1)
@for_each("name", KEYS)
@for_each("seed", range(1))
def test_collectives_of_ranks_that_come_at_any_time_share_max_min_fairly(kind, name, seed):
    where, algorithm, nbytes = place(name), FAMILIES["all_reduce"][kind](), 3e6
    if algorithm.problem_with(layout(where)):
        pytest.skip("cannot serve this cluster")
    plan, enter = algorithm.plan(layout(where), nbytes), late(seed)
    expected = collective_ends(where, plan, nbytes, enter)
    assert event_ends(where, plan, nbytes, enter) == pytest.approx(expected, rel=EXACT)


@for_each("channels", [2, 3])
@for_each("seed", range(3))
def test_channels_share_max_min_fairly(channels, seed, tmp_path):
    (tmp_path / "ring.xml").write_text(ring_all_reduce(N, channels))
    made = FAMILIES["all_reduce"]["msccl"](path="ring.xml").settled(tmp_path)
    where, plan, enter = place("switch"), made.plan(N, 3e6), late(seed)
    expected = collective_ends(where, plan, 3e6, enter)
    assert event_ends(where, plan, 3e6, enter) == pytest.approx(expected, rel=EXACT)


@pytest.mark.slow
@for_some("kind", ["ring", "tree", "halving_doubling", "direct"], 2)
@for_each("name", ["switch", "ring", "torus2d", "fat_tree", "dragonfly"])
def test_a_steps_all_reduce_among_stragglers_shares_max_min_fairly(load, kind, name):
    """A scenario of one step: ranks come when their backward is done, each at its own time."""
    keys = {**CLUSTER, **KEYS[name], "world_size": N, "link": LINK}
    workload = {
        "model": {"kind": "mlp", "widths": [1000, 1000], "bias": False},
        "dataset": {"kind": "regression", "num_samples": 64},
        "optimizer": "none",
        "microbatch": 1,
        "compute": {"kind": "measured", "points": [{"microbatch": 1, "step_time": "1 ms"}]},
        "steps": 1,
    }
    keys["stragglers"] = [{"kind": "lognormal", "sigma": 0.3}]
    strategy = {"kind": "ddp", "bucket_cap": "1 GB"}
    top = {"cluster": keys, "workload": workload, "strategy": strategy, "numerics": False}
    scenario = load(collectives={"all_reduce": kind}, **top)
    trace = simdp.simulate(scenario, fabric="event").trace
    of_step = trace.step == 0
    backward = of_step & (trace.activity == ACTIVITIES.index("backward"))
    comm = of_step & (trace.activity == ACTIVITIES.index("comm"))
    enter, end = np.zeros(N), np.zeros(N)
    np.maximum.at(enter, trace.rank[backward], trace.end[backward])
    np.maximum.at(end, trace.rank[comm], trace.end[comm])
    assert enter.std() > 1e-5
    plan = scenario.collectives.all_reduce.plan(layout(scenario.cluster), 4e6)
    begin = enter.min()  # the step begins where the setup ends
    expected = collective_ends(scenario.cluster, plan, 4e6, enter - begin)
    assert end - begin == pytest.approx(np.array(expected), rel=EXACT)
