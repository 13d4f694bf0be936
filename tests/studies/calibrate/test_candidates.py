"""The formula on arrays: the same seconds as the cost that a scenario has."""

from math import inf

import numpy as np
import pytest
from for_each import for_each

from simdp.collectives.costs import Wiring
from simdp.collectives.costs.nccl import WAYS, NcclCost, pooled
from simdp.studies.calibrate.fit import (
    CalibrationPoint,
    Candidates,
    fit,
    nccl_constants,
    restraints,
    typical_values,
)

BOX = Wiring(8, 1, 8, 3.4e-6, 300e9, 0.0, inf, 0)
PAIR = Wiring(16, 2, 8, 3.4e-6, 300e9, 14e-6, 100e9, 4)
RACK = Wiring(64, 8, 8, 3.4e-6, 300e9, 14e-6, 100e9, 4)
DOMAIN = Wiring(72, 1, 72, 3.4e-6, 900e9, 0.0, inf, 0)
THIN = Wiring(8, 8, 1, 0.0, inf, 14e-6, 1.25e9, 1)

COSTS = {
    "published": {},
    "summed": {"stages": "summed"},
    "nvls": {"algorithms": ["ring", "tree", "nvls"]},
    "flows": {"flow_bandwidth": "0.4 GB/s", "flows_per_pair": 2, "two_nodes": 0.6},
    "host": {"host_bandwidth": "30 GB/s", "protocols": ["ll", "simple"]},
    "paced": {"ring_step": {"ll": "5 us", "simple": "40 us"}, "tree_step": "90 us"},
    "losing": {"nodes_exponent": 0.155},
    "slow": {"hop": {"inter": "0.4 ms"}, "base": "9 us", "ramp": "50 us"},
}


@for_each("name", COSTS)
@for_each("wiring", [BOX, PAIR, RACK, DOMAIN, THIN], ids=["box", "pair", "rack", "domain", "thin"])
def test_arrays_give_the_seconds_of_the_cost(name, wiring):
    cost = NcclCost.model_validate(COSTS[name])
    points = [
        CalibrationPoint(collective, 4.0**k, wiring)
        for collective in sorted(WAYS)
        for k in range(1, 16, 2)
    ]
    wanted = [cost.seconds(*point) for point in points]
    found = Candidates(cost, points).seconds(typical_values(cost, points))
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_constants_that_no_point_can_speak_of_are_not_offered():
    def keys(wiring, collective="all_reduce", **cost):
        points = [CalibrationPoint(collective, 1024.0, wiring)]
        return [c.key for c in nccl_constants(NcclCost.model_validate(cost), points)]

    assert keys(BOX)[:3] == ["efficiency.intra.simple", "launch", "ramp"]
    assert not any("inter" in key or key == "tree_efficiency" for key in keys(BOX))
    assert not any("intra" in key for key in keys(THIN))
    assert "tree_efficiency" in keys(THIN)
    assert "tree_efficiency" not in keys(THIN, "all_gather")
    assert "nvls_efficiency" in keys(BOX, algorithms=["nvls"])
    assert not any("ll128" in key for key in keys(PAIR, protocols=["ll", "simple"]))
    assert len(keys(PAIR)) == len({*keys(PAIR)}) == 15


@for_each(
    ("classes", "network", "constant", "peer"),
    [
        ({}, PAIR.network, "share", PAIR.peer),
        ({"network": "roce", "peer": "pcie"}, "roce", "share", "pcie"),
        ({"network": "tcp"}, "tcp", "flow", PAIR.peer),
    ],
)
def test_data_sheets_are_as_uncertain_as_the_sites_of_their_class(classes, network, constant, peer):
    points = [CalibrationPoint("all_reduce", 1024.0, PAIR)]
    found = nccl_constants(NcclCost.model_validate(classes), points, is_given=True)
    spreads = {one.key: one.spread for one in found}
    assert spreads["efficiency.inter.simple"] == pooled("network", network, constant).spread
    assert spreads["efficiency.intra.simple"] == pooled("peer", peer, "share").spread


def test_flags_leave_ll_a_half_and_ll128_120_of_128_bytes_of_what_simple_gets():
    cost = NcclCost()
    points = [CalibrationPoint("all_reduce", 1024.0, BOX)]
    constants, base = nccl_constants(cost, points), typical_values(cost, points)
    broken = restraints(constants, base)
    values = np.array([constant.typical for constant in constants])
    assert not broken(values).any()
    keys = [constant.key for constant in constants]
    values[keys.index("efficiency.intra.simple")] = 0.5
    assert broken(values).tolist() == pytest.approx(
        [np.log(0.29 / 0.25) / 0.02, np.log(0.74 / 0.5 / 0.9375) / 0.02, 0, 0], rel=1e-3
    )


def test_sockets_on_several_numbers_of_nodes_determine_their_loss():
    """Times of a known loss give it back, from two numbers of nodes."""
    true = NcclCost.model_validate(
        {"network": "tcp", "nodes_exponent": 0.3, "algorithms": ["ring"]}
    )
    wirings = [THIN._replace(world_size=n, num_nodes=n, network="tcp") for n in (2, 16)]
    points = [
        CalibrationPoint("all_reduce", 2.0**k, wiring) for wiring in wirings for k in range(20, 32)
    ]
    cost = true.model_copy(update={"nodes_exponent": 0.0})
    constants = [c for c in nccl_constants(cost, points) if c.key == "nodes_exponent"]
    base, seconds = typical_values(cost, points), np.array([true.seconds(*p) for p in points])
    candidates = Candidates(cost, points)
    found = fit(
        lambda values: candidates.seconds({**base, "nodes_exponent": float(values[0])}),
        seconds,
        constants,
    )
    assert found.values[0] == pytest.approx(0.3, rel=0.01)
    one = [c.key for c in nccl_constants(cost, points[:12])]
    assert "nodes_exponent" not in one


def test_rings_of_three_nodes_or_more_have_steps_to_fit():
    def keys(collective, nodes):
        wiring = THIN._replace(world_size=nodes, num_nodes=nodes)
        points = [CalibrationPoint(collective, 2.0**20, wiring)]
        return {c.key for c in nccl_constants(NcclCost(), points)}

    steps = {"ring_step.ll", "ring_step.ll128", "ring_step.simple"}
    assert steps <= keys("all_gather", 3)
    assert not steps & keys("all_gather", 2)
    assert not steps & keys("all_to_all", 8)
