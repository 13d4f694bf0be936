"""Devices of two kinds in one job: every strategy computes at each device's own pace."""

import numpy as np
import pytest
from every_strategy import EVERY, scenario
from for_each import for_some
from small_scenario import FAST

import simdp
from simdp.results.metrics import busy_times

pytestmark = pytest.mark.slow

QUICK = {**FAST["device"], "launch": "0 s"}
HALF = {
    **QUICK,
    "peak": dict.fromkeys(QUICK["peak"], "5 TFLOP/s"),
    "memory_bandwidth": "0.5 TB/s",
}
SEVERAL = [strategy for strategy in EVERY if strategy["kind"] != "single"]


NO_HOST = {"operator": "0 s", "replicate": "0 s"}


def run(strategy, *devices, numerics=False):
    cluster = {"device": [QUICK if quick else HALF for quick in devices]}
    found = scenario(strategy, len(devices), cluster, numerics=numerics, host=NO_HOST)
    return simdp.simulate(found)


@for_some("strategy", SEVERAL, 6, ids=str)
def test_a_device_of_half_the_figures_takes_twice_as_long_under_every_strategy(strategy):
    quick, mixed, slow = (run(strategy, *each) for each in ([1, 1], [1, 0], [0, 0]))
    times = [found.metrics["step_time_s"] for found in (quick, mixed, slow)]
    assert (
        times[0] <= 1.001 * times[1] <= 1.001**2 * times[2]
    )  # an order of collectives may gain a little
    own = [compute(found) for found in (quick, mixed, slow)]
    assert own[2] == pytest.approx(2 * own[0], rel=1e-9)
    if strategy["kind"] != "parameter_server":  # whose workers go at their own pace
        assert own[1][:, 0] == pytest.approx(own[0][:, 0], rel=1e-9)
        assert own[1][:, 1] == pytest.approx(own[2][:, 1], rel=1e-9)


def compute(found):
    """Forward and backward of each rank and step [s]."""
    blocks = [
        block
        for block in found.trace.blocks
        if simdp.results.trace.ACTIVITIES[block.activity] in ("forward", "backward")
    ]
    return busy_times(blocks, found.world_size, found.step_ends.shape[1] - 1)


@for_some(
    "strategy", [one for one in SEVERAL if one["kind"] != "parameter_server"], 6, first=3, ids=str
)
def test_what_devices_are_mixed_changes_no_bit(strategy):
    alike, mixed = (run(strategy, *each, numerics=True) for each in ([1, 1], [1, 0]))
    for ranks in zip(alike.replicas, mixed.replicas, strict=True):
        for name in ranks[0]:
            np.testing.assert_array_equal(ranks[0][name], ranks[1][name])
