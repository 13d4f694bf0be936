"""Collectives whose cost brings their times: no transfer is played, and no link is needed."""

from pathlib import Path

import numpy as np
import pytest
from for_each import for_each

import simdp
from simdp.collectives.costs.nccl import NcclCost
from simdp.errors import ScenarioError
from simdp.scenario import checked
from simdp.scenario.placement import wiring_of

CLUSTER = {
    "world_size": 8,
    "devices_per_node": 4,
    "device": "a100-sxm4-40gb",
    "link": "nvlink3",
    "inter_node": {"link": "ib-hdr"},
}


def scenario(cost="nccl", cluster=None, **more):
    raw = {
        "cluster": {**CLUSTER, **(cluster or {})},
        "workload": {
            "model": {"kind": "mlp", "widths": [64, 64, 8]},
            "dataset": {"kind": "regression", "num_samples": 256},
            "microbatch": 8,
            "steps": 3,
        },
        "strategy": {"kind": "ddp", "bucket_cap": "0 B"},
        "collectives": {"cost": cost},
        **more,
    }
    return checked(raw, Path())


def test_a_collective_begins_when_the_last_rank_has_come_and_ends_everywhere_at_once():
    slow = {"stragglers": [{"kind": "slow_rank", "rank": 5, "factor": 3.0}]}
    one = scenario(cluster=slow)
    result = simdp.simulate(one)
    comm = [s for s in result.trace.spans if s.activity == "comm" and s.step == 1]
    names = list(dict.fromkeys(s.name for s in comm))
    assert len(names) == 4  # tensors
    cost = NcclCost()
    for name, nbytes in zip(names, result.metrics["bucket_bytes"], strict=True):
        mine = [s for s in comm if s.name == name]
        assert len(mine) == 8
        assert len({s.end for s in mine}) == 1
        seconds = cost.seconds("all_reduce", nbytes, wiring_of(one.cluster))
        begin = max(s.start for s in mine)
        assert mine[0].end - begin == pytest.approx(seconds, rel=1e-9)


def test_both_fabrics_play_it_even_where_links_are_shared():
    shared = {
        "inter_node": {"link": "ib-hdr", "topology": {"kind": "fat_tree", "oversubscription": 2}}
    }
    one = scenario(cluster=shared)
    found, other = (simdp.simulate(one, fabric=fabric) for fabric in ("auto", "vector"))
    assert found.network["fabric"] == "event"
    assert found.network["why"].startswith("collectives.cost tells how long collectives take")
    assert found.metrics["step_time_s"] == pytest.approx(other.metrics["step_time_s"], rel=1e-12)
    assert found.metrics["wait_s"] == pytest.approx(other.metrics["wait_s"], rel=1e-12)


def test_numbers_and_bytes_do_not_depend_on_the_cost():
    timed, played = (simdp.simulate(scenario(cost)) for cost in ("nccl", "links"))
    assert timed.metrics["bytes_sent_per_rank"] == played.metrics["bytes_sent_per_rank"]
    assert timed.metrics["step_time_s"] != played.metrics["step_time_s"]
    for name, array in timed.replicas[3].items():
        assert np.array_equal(array, played.replicas[3][name])


def test_a_single_rank_sends_nothing_and_pays_nothing():
    times = [
        simdp.simulate(scenario(cost, {"world_size": 1})).metrics["step_time_s"]
        for cost in ("nccl", "links")
    ]
    assert times[0] == times[1]


def test_other_jobs_on_the_network_need_links():
    with pytest.raises(
        ScenarioError,
        match=r"collectives\.cost: nccl knows no other jobs on the network; use links, or leave "
        r"out neighbours\.",
    ):
        scenario(
            numerics=False,
            neighbours=[
                {
                    "world_size": 8,
                    "workload": {
                        "model": {"kind": "parameters", "num_params": 1000},
                        "microbatch": 1,
                    },
                }
            ],
        )


@for_each(
    ("cost", "cluster", "collective"),
    [
        ({"algorithms": ["tree"]}, {}, "broadcast"),
        ({"algorithms": ["nvls"]}, {"devices_per_node": 1}, "all_reduce"),
    ],
)
def test_a_cost_must_know_every_collective_that_is_called(cost, cluster, collective):
    line = f"collectives.cost: cost nccl has no algorithm for {collective}; add ring to its"
    with pytest.raises(ScenarioError, match=line):
        scenario({"kind": "nccl", **cost}, cluster)
    assert scenario({"kind": "nccl", **cost}, {"world_size": 1})
