"""Step times of scenarios that differ little are those of `simulate`."""

import pytest

from simdp.engine import stopwatch as module
from simdp.engine.simulate import simulate
from simdp.engine.stopwatch import Stopwatch

FEW = {"numerics": False, "workload.steps": 3}
NCCL = {**FEW, "collectives.cost": "nccl"}
CHANGES = [
    {},
    {"cluster.link.alpha": "9 us"},
    {"cluster.link.bandwidth": "26 GB/s"},
    {"cluster.device.memory_bandwidth": "1 GB/s"},
    {"cluster.overheads.hook": "3 us"},
    {"cluster.overheads.message": "3 us"},
    {"cluster.world_size": 2},
    {"cluster.device": ["t4-16gb", "t4-16gb", "a100-sxm4-80gb", "t4-16gb"]},
    {"cluster.stragglers": [{"kind": "slow_rank", "rank": 1, "factor": 2}]},
    {"workload.microbatch": 3},
    {"workload.steps": 1},
    {"strategy.bucket_cap": "0 B"},
    {"collectives.all_reduce": "tree"},
]


def step_time(scenario):
    return simulate(scenario).metrics["step_time_s"]


@pytest.mark.parametrize("start", [FEW, NCCL], ids=["links", "nccl"])
@pytest.mark.parametrize("change", CHANGES, ids=repr)
def test_a_stopwatch_says_what_simulate_says(start, change, load):
    first, other = load(start), load({**start, **change})
    stopwatch = Stopwatch(first)
    assert stopwatch.metrics["step_time_s"] == step_time(first)
    assert stopwatch.step_time(other) == step_time(other)


@pytest.mark.parametrize("start", [FEW, NCCL], ids=["links", "nccl"])
def test_scenarios_with_one_workload_are_told_apart_by_their_devices_and_network(start, load):
    first = load(start)
    stopwatch, cluster = Stopwatch(first), first.cluster
    for change in (
        {"device": cluster.device.model_copy(update={"launch": 1e-3})},
        {"world_size": 2},
        {"link": cluster.link.model_copy(update={"alpha": 1e-3})},
    ):
        other = first.model_copy(update={"cluster": cluster.model_copy(update=change)})
        assert stopwatch.step_time(other) == step_time(other) != step_time(first)


def test_a_network_that_tells_the_same_times_is_not_played_again(load, monkeypatch):
    first = load(NCCL)
    stopwatch = Stopwatch(first)
    monkeypatch.delattr(module, "play")
    idle = {"collectives.cost.hop.inter": "9 ms"}  # there is one node
    other = first.model_copy(update={"collectives": load({**NCCL, **idle}).collectives})
    assert other != first
    assert stopwatch.step_time(other) == stopwatch.metrics["step_time_s"]


def test_a_bandwidth_that_the_strategy_may_read_is_played_again(load, monkeypatch):
    nodes = {"link": {"alpha": "5 us", "bandwidth": "1 GB/s"}}
    first = load({**NCCL, "cluster.devices_per_node": 2, "cluster.inter_node": nodes})
    stopwatch = Stopwatch(first)
    inter = first.cluster.inter_node
    link = inter.link.model_copy(update={"bandwidth": 2e9})
    cluster = first.cluster.model_copy(
        update={"inter_node": inter.model_copy(update={"link": link})}
    )
    monkeypatch.delattr(module, "play")
    stopwatch._told = {}
    with pytest.raises(NameError):
        stopwatch.step_time(first.model_copy(update={"cluster": cluster}))


@pytest.mark.parametrize("change", CHANGES[1:], ids=repr)
def test_every_other_scenario_is_played(change, load, monkeypatch):
    stopwatch, other = Stopwatch(load(NCCL)), load({**NCCL, **change})
    monkeypatch.delattr(module, "play")
    with pytest.raises(NameError):
        stopwatch.step_time(other)
