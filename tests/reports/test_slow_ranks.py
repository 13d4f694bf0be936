"""Who keeps everybody waiting."""

import numpy as np

from simdp.reports.rank_rows import NUM_SLOWEST, slow_ranks
from simdp.results.metrics import Metrics
from simdp.results.result import Result
from simdp.results.trace import COMPUTE_LANE, TraceBuilder


def run(seconds, stragglers=()):
    builder, n = TraceBuilder(), len(seconds)
    times = np.zeros(n), np.array(seconds, dtype=float)
    builder.add(np.arange(n), 0, COMPUTE_LANE, "forward", "x", *times)
    cluster = {"world_size": n, "stragglers": list(stragglers)}
    return Result({"cluster": cluster}, {}, Metrics(), builder.build())


def slow(result):
    return slow_ranks(result, result.trace.blocks)


def test_ranks_that_the_scenario_slows_down_are_named_with_their_factors():
    listed = [
        {"kind": "slow_rank", "rank": 1, "factor": 1.5},
        {"kind": "slow_rank", "rank": 2, "factor": 2.0},
        {"kind": "slow_rank", "rank": 0, "factor": 1},
        {"kind": "slow_rank", "rank": 9, "factor": 3.0},
        {"kind": "lognormal", "sigma": 0.1},
    ]
    assert slow(run([1, 1, 1, 1], listed)) == {2: " · 2×", 1: " · 1.5×"}


def test_the_ranks_of_a_slow_node_are_named_and_those_of_a_degraded_link_are_not():
    cluster = {"world_size": 4, "devices_per_node": 2, "stragglers": []}
    result = run([1, 1, 1, 1])
    result.scenario["cluster"] = cluster
    cluster["stragglers"] = [
        {"kind": "slow_node", "node": 1, "factor": 1.5},
        {"kind": "degraded_link", "rank": 0, "bandwidth": 0.5},
    ]
    assert slow(result) == {2: " · 1.5×", 3: " · 1.5×"}


def test_else_those_that_compute_longer_than_the_median_the_slowest_first():
    assert slow(run([1, 1.25, 1, 1.5, 1, 1])) == {3: " · +50 %", 1: " · +25 %"}
    assert len(slow(run([1] * 20 + [2] * 9))) == NUM_SLOWEST


def test_equal_ranks_and_idle_ones_are_not_slow():
    assert slow(run([1, 1, 1, 1.01])) == {}
    assert slow(run([0, 0])) == {}
