"""No simulation is below the bounds: of time, memory, money and energy."""

import random
from pathlib import Path

import pytest
from draws import draws
from for_each import for_each, for_some, one_in
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from simdp.engine.outcome import cost_of
from simdp.engine.simulate import simulate
from simdp.errors import ScenarioError
from simdp.job.targets import SamplesNeeded
from simdp.results.metrics import lasting
from simdp.studies.executor import executor_for
from simdp.studies.plan.bounds import BoundRequest, Bounds, demand_of
from simdp.studies.plan.request import PlanPoint, Space

WIDTHS = [256, 512, 512, 128]

STRATEGIES = [
    "ddp",
    {"kind": "ddp", "bucket_cap": "0 B"},
    {"kind": "ddp", "comm_hook": "fp16"},
    "zero1",
    "zero2",
    {"kind": "zero2", "communication": "deepspeed"},
    "zero3",
    "fsdp",
    "fsdp1",
    "hsdp",
    "horovod",
    "local_sgd",
    "single",
    "data_parallel",
]

MACHINES = ["dgx-a100", "dgx-h100", "aws-p4d", "hkbu-10gbe", "hkbu-ib100", "horovod-25g-tcp"]

LINKS = {
    "world_size": 4,
    "devices_per_node": 2,
    "device": "v100-sxm2-16gb",
    "link": {"alpha": "5 us", "bandwidth": "5 GB/s"},
    "inter_node": {"topology": "switch", "link": {"alpha": "20 us", "bandwidth": "1 GB/s"}},
}


def raw(cluster, strategy="ddp", **workload):
    model = {"kind": "mlp", "widths": WIDTHS}
    told = {"model": model, "microbatch": 4, "optimizer": "adam", "steps": 2, **workload}
    return {
        "name": "x",
        "cluster": cluster,
        "workload": told,
        "strategy": strategy,
        "numerics": False,
    }


def check(plain, choices, batch, numbers=None):
    """Hold the bounds of a space against simulations of its points; return how many there were."""
    space = Space(plain, Path(), choices, batch)
    points = [point for point in space.points() if isinstance(point, PlanPoint)]
    bounds = Bounds(space, points, lambda size: SamplesNeeded(1e6))
    with executor_for(1) as executor:
        bounds.look(executor)
    count = 0
    for number in numbers(len(points)) if numbers else range(len(points)):
        try:
            scenario = space.scenario(points[number].settings)
        except ScenarioError:
            continue
        assert bounds.is_possible[number], points[number]
        metrics = simulate(scenario, keep_trace=False).metrics
        assert bounds.step[number] <= metrics["step_time_s"], points[number]
        assert bounds.memory[number] <= max(metrics["peak_memory_bytes"]), points[number]
        seconds = 1e6 / metrics["throughput_samples_per_s"]
        spent = lasting(scenario.cluster.rates(), metrics, seconds)
        if spent.cost_usd is not None:
            assert bounds.cost[number] <= spent.cost_usd, points[number]
        if spent.energy_kwh is not None:
            assert bounds.energy[number] <= spent.energy_kwh, points[number]
        count += 1
    return count, bounds


@for_each("strategy", STRATEGIES, ids=str)
def test_every_strategy_on_links_that_are_played(strategy):
    cluster = {**LINKS, "world_size": 2} if strategy == "data_parallel" else LINKS
    choices = {"strategy": [strategy], "workload.microbatch": [1, 2, 4]}
    check(raw(cluster, strategy), choices, 24)


@pytest.mark.slow
@for_some("strategy", STRATEGIES[:10], 4, ids=str)
def test_every_strategy_on_machines_of_the_catalogue(strategy):
    choices = {
        "cluster.machine": MACHINES,
        "nodes": [1, 2],
        "strategy": [strategy],
        "workload.microbatch": [1, 8],
    }
    seeded = random.Random(3)
    count, _ = check(
        raw({"machine": "dgx-a100", "world_size": 8}, strategy),
        choices,
        128,
        lambda n: seeded.sample(range(n), min(6, n)),
    )
    assert count


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ring", "tree", "halving_doubling", "naive", "auto"])
@pytest.mark.parametrize("topology", one_in(3, ["switch", "ring", "full_mesh"]))
def test_every_algorithm_and_topology(algorithm, topology):
    cluster = {**LINKS, "topology": topology}
    plain = {**raw(cluster), "collectives": {"all_reduce": algorithm, "cost": "links"}}
    count, bounds = check(plain, {"cluster.world_size": [2, 4, 8], "workload.microbatch": [4]}, 32)
    assert count
    assert (bounds.step > 0).all()


@for_each(
    "straggler",
    [
        {"kind": "slow_rank", "rank": 1, "factor": 0.5},
        {"kind": "slow_rank", "rank": 1, "factor": 2},
        {"kind": "lognormal", "sigma": 0.3},
        {"kind": "pause", "rank": 0, "every": 1, "duration": "5 ms"},
    ],
    ids=lambda one: one["kind"],
)
def test_stragglers_that_make_ranks_faster_too(straggler):
    plain = raw({**LINKS, "stragglers": [straggler]})
    count, _ = check(plain, {"workload.microbatch": [2, 8]}, 64)
    assert count == 2


@pytest.mark.slow
@draws(10, 25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    strategy=st.sampled_from(STRATEGIES[:10]),
    accum=st.integers(1, 9),
    microbatch=st.sampled_from([1, 3, 16]),
    nodes=st.sampled_from([1, 2, 4]),
    bandwidth=st.sampled_from(["100 MB/s", "5 GB/s", "200 GB/s"]),
    overheads=st.fixed_dictionaries(
        {
            "hook": st.sampled_from(["0 s", "20 us"]),
            "launch": st.sampled_from(["0 s", "50 us"]),
            "message": st.sampled_from(["0 s", "100 us"]),
            "compute_slowdown": st.sampled_from([0, 0.6]),
            "copies": st.booleans(),
        }
    ),
    cost=st.sampled_from(["links", "nccl"]),
)
def test_any_mix(strategy, accum, microbatch, nodes, bandwidth, overheads, cost):
    inter = {"topology": "switch", "link": {"alpha": "20 us", "bandwidth": bandwidth}}
    cluster = {**LINKS, "inter_node": inter, "overheads": overheads}
    plain = {**raw(cluster, strategy), "collectives": {"cost": cost}}
    size = nodes * 2
    check(
        plain,
        {"nodes": [nodes], "workload.microbatch": [microbatch]},
        size * microbatch * accum,
    )


def test_a_step_of_many_micro_steps_on_equal_ranks_is_nearly_as_long_as_its_bound():
    plain = raw({**LINKS, "device": "a100-sxm4-80gb"})
    plain["collectives"] = {"cost": "nccl"}
    _, bounds = check(plain, {"workload.microbatch": [1], "strategy": ["ddp", "fsdp"]}, 48)
    space = bounds.space
    for number, point in enumerate(bounds.points):
        metrics = simulate(space.scenario(point.settings), keep_trace=False).metrics
        assert point.micro_steps == 12
        assert bounds.step[number] == pytest.approx(metrics["step_time_s"], rel=1e-3)


def test_a_scenario_that_fits_nowhere_has_no_demand():
    plain = raw(LINKS)
    _, lines = demand_of(BoundRequest(plain, plain, Path(), 1, 0.0))
    needed = max(one + 9999 * more for one, more in lines)
    asked = BoundRequest(plain, plain, Path(), 10_000, needed)
    assert demand_of(asked)[0] is not None
    assert demand_of(asked._replace(room=0.99 * needed))[0] is None


def test_bounds_know_the_price_of_the_scenario():
    plain = raw({**LINKS, "price": "2 USD/h", "power": {"rest": "50 W", "busy": "300 W"}})
    count, bounds = check(plain, {"workload.microbatch": [2, 8]}, 64)
    assert count == 2
    assert (bounds.cost > 0).all()
    assert (bounds.energy > 0).all()
    scenario = bounds.space.scenario(bounds.points[0].settings)
    metrics = simulate(scenario, keep_trace=False).metrics
    assert cost_of(scenario, metrics)["price_usd_per_h"] == pytest.approx(2)
