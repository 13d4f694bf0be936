"""Step times of scenarios that differ little are those of `simulate`."""

import pytest
from for_each import for_each, for_some

from simdp.engine import recorded_script as module
from simdp.engine.collective import Planner
from simdp.engine.recorded_script import Stopwatch
from simdp.engine.simulate import plans_of, simulate, times_alone
from simdp.results.metrics import Metrics
from simdp.studies.variants import with_numbers

FEW = {"numerics": False, "workload.steps": 3}
OVERHEADS = {
    "hook": "2 us",
    "message": "3 us",
    "compute_slowdown": 0.3,
    "collective_slowdown": 0.2,
}
NCCL = {
    **FEW,
    "collectives.cost": "nccl",
    "cluster.overheads": OVERHEADS,
    "workload.host.step": "40 us",
    "cluster.stragglers": [{"kind": "lognormal", "sigma": 0.1}],
}
CHARGED_ANEW = [
    {},
    {"cluster.link.alpha": "9 us"},
    {"cluster.link.bandwidth": "26 GB/s"},
    {"cluster.overheads.hook": "3 us"},
    {"cluster.overheads.hook": "0 s"},
    {"cluster.overheads.message": "30 us"},
    {"cluster.overheads.message_per_rank": "1 us"},
    {"cluster.overheads.compute_slowdown": 2},
    {"cluster.overheads.compute_slowdown": {"accesses": 4}, "cluster.link.bandwidth": "26 GB/s"},
    {"cluster.overheads.collective_slowdown": 0},
    {"cluster.stragglers.0.sigma": 0.3},
    {"cluster.stragglers": []},
    {"collectives.cost.launch": "90 us"},
    {"collectives.cost.hop.inter": "9 ms"},  # there is one node
    {"workload.host": {"step": "70 us", "per_neighbour": "5 us"}},
]
"""Changes after which a script is the same but for its times, where their cost tells them."""

OTHER_DEVICES = [
    {"cluster.device.memory_bandwidth": "1 GB/s"},
    {"cluster.device.efficiency": 0.01, "cluster.link.alpha": "9 us"},
    {"cluster.device.launch": "90 us", "cluster.overheads.compute_slowdown": 2},
    {"cluster.device.memory_efficiency": 0.1, "cluster.stragglers.0.sigma": 0.3},
    {"cluster.overheads.compute_slowdown": {}, "cluster.device.launch": "90 us"},
    {"workload.host": {"step": "70 us", "operator": "90 us"}},
    {"workload.host": {"step": "40 us", "async_launch": True}},
    {"cluster.device": ["t4-16gb", "t4-16gb", "a100-sxm4-80gb", "t4-16gb"]},
]
"""Changes after which a script is the same, but work takes another time."""

PLAYED = [
    {"cluster.overheads.launch": "3 us"},
    {"cluster.world_size": 2},
    {"cluster.stragglers": [{"kind": "pause", "rank": 1, "every": 2, "duration": "1 ms"}]},
    {"workload.microbatch": 3},
    {"workload.steps": 1},
    {"workload.host.step": "0 s"},
    {"strategy.bucket_cap": "0 B"},
    {"collectives.all_reduce": "tree"},
    {"collectives.cost": "links"},
]
STRATEGIES = ["ddp", {"kind": "horovod", "cycle_time": "10 us"}, "apex", "fsdp"]
WORK = {
    "adamw": {"workload.optimizer": "adamw", "workload.clip_grad_norm": 1.0},
    "accumulated": {
        "workload.grad_accum": 3,
        "workload.compute": {"kind": "roofline", "kernels": "torch"},
    },
    "fsdp": {"strategy": "fsdp", "workload.optimizer": "adamw"},
    "fsdp1": {"strategy": "fsdp1", "workload.grad_accum": 2, "workload.microbatch": 4},
    "uneven": {"workload.microbatch": 7},
    "pauses": {
        "cluster.stragglers": [
            {"kind": "lognormal", "sigma": 0.1},
            {"kind": "pause", "rank": 1, "every": 2, "duration": "1 ms"},
        ]
    },
    "measured": {
        "workload.compute": {
            "kind": "measured",
            "points": [
                {"microbatch": 8, "step_time": "1 ms"},
                {"microbatch": 8, "step_time": "2 ms", "device": "t4-16gb"},
            ],
        }
    },
}
"""Settings whose work depends on devices in different ways."""


def step_time(scenario):
    return simulate(scenario).metrics["step_time_s"]


def other_than(first, load, start, change):
    """The scenario with a change, of one workload with the first where they have equal ones."""
    made = load({**start, **change})
    alike = made.workload == first.workload
    return made.model_copy(update={"workload": first.workload}) if alike else made


@pytest.mark.slow
@for_each("start", [FEW, NCCL], ids=["links", "nccl"])
@for_each("change", CHARGED_ANEW[:3] + OTHER_DEVICES[::4] + PLAYED, ids=repr)
def test_a_stopwatch_says_what_simulate_says(start, change, load):
    first = load(start)
    other = other_than(first, load, start, change)
    stopwatch = Stopwatch(first)
    assert stopwatch.metrics["step_time_s"] == pytest.approx(step_time(first), rel=1e-12, abs=0)
    assert stopwatch.step_times([other])[0] == pytest.approx(step_time(other), rel=1e-12, abs=0)


@pytest.mark.slow
@for_some("strategy", STRATEGIES, 4, first=2, ids=str)
@for_each("change", CHARGED_ANEW, ids=repr)
def test_what_is_only_charged_anew_takes_what_simulate_says(change, strategy, load):
    start = {**NCCL, "strategy": strategy}
    first = load(start)
    other = other_than(first, load, start, change)
    found = Stopwatch(first).step_times([other])[0]
    assert found == pytest.approx(step_time(other), rel=1e-12, abs=0)


@pytest.mark.slow
@for_some("strategy", STRATEGIES, 3, ids=str)
def test_several_at_once_take_what_each_takes_by_itself(strategy, load):
    start = {**NCCL, "strategy": strategy}
    first = load(start)
    changes = CHARGED_ANEW + OTHER_DEVICES + PLAYED[:1]
    others = [other_than(first, load, start, change) for change in changes]
    found = Stopwatch(first).step_times(others)
    assert found == pytest.approx([step_time(other) for other in others], rel=1e-12, abs=0)


@pytest.mark.slow
@for_some("strategy", STRATEGIES, 4, first=1, ids=str)
@for_each("change", OTHER_DEVICES, ids=repr)
def test_other_devices_take_what_simulate_says(change, strategy, load):
    start = {**NCCL, "strategy": strategy}
    first = load(start)
    other = other_than(first, load, start, change)
    found = Stopwatch(first).step_times([other])[0]
    assert found == pytest.approx(step_time(other), rel=1e-12, abs=0)
    assert found != pytest.approx(step_time(first), rel=1e-6, abs=0)


@pytest.mark.parametrize("work", WORK)
def test_all_work_is_charged_anew_on_other_devices(work, load, monkeypatch):
    start = {**NCCL, **WORK[work]}
    first = load(start)
    change = {"cluster.device": "t4-16gb"}
    stopwatch, other = Stopwatch(first), other_than(first, load, start, change)
    with monkeypatch.context() as patch:
        patch.delattr(module, "play")
        found = stopwatch.step_times([other])[0]
    assert found == pytest.approx(step_time(other), rel=1e-12, abs=0)
    assert found != pytest.approx(step_time(first), rel=1e-6, abs=0)


@for_each("start", [FEW, NCCL], ids=["links", "nccl"])
def test_scenarios_with_one_workload_are_told_apart_by_their_devices_and_network(start, load):
    first = load(start)
    stopwatch, cluster = Stopwatch(first), first.cluster
    for change in (
        {"device": cluster.device.model_copy(update={"launch": 1e-3})},
        {"world_size": 2},
        {"link": cluster.link.model_copy(update={"alpha": 1e-3})},
    ):
        other = first.model_copy(update={"cluster": cluster.model_copy(update=change)})
        assert stopwatch.step_times([other])[0] == pytest.approx(step_time(other), rel=1e-12, abs=0)
        assert stopwatch.step_times([other])[0] != pytest.approx(step_time(first), rel=1e-6, abs=0)


@pytest.mark.parametrize("change", CHARGED_ANEW + OTHER_DEVICES, ids=repr)
def test_what_is_only_charged_anew_is_not_read_again(change, load, monkeypatch):
    first = load(NCCL)
    stopwatch, other = Stopwatch(first), other_than(first, load, NCCL, change)
    monkeypatch.delattr(module, "play")
    assert stopwatch.step_times([other])[0] > 0


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
    with pytest.raises(NameError):
        stopwatch.step_times([first.model_copy(update={"cluster": cluster})])


def test_a_script_that_follows_from_foreseen_times_is_read_again_with_other_ones(load, monkeypatch):
    foresees = {"kind": "horovod", "merge": "mg_wfbp"}
    for strategy, change in (
        ({"kind": "horovod"}, {"cluster.overheads.hook": "3 us"}),
        (foresees, {"collectives.cost.launch": "90 us"}),
    ):
        start = {**NCCL, "strategy": strategy}
        first = load(start)
        stopwatch, other = Stopwatch(first), other_than(first, load, start, change)
        with monkeypatch.context() as patch, pytest.raises(NameError):
            patch.delattr(module, "play")
            stopwatch.step_times([other])[0]


@pytest.mark.parametrize("change", PLAYED, ids=repr)
def test_every_other_scenario_is_played(change, load, monkeypatch):
    first = load(NCCL)
    stopwatch, other = Stopwatch(first), other_than(first, load, NCCL, change)
    monkeypatch.delattr(module, "play")
    with pytest.raises(NameError):
        stopwatch.step_times([other])[0]


@pytest.mark.slow
@for_each("strategy", STRATEGIES, ids=str)
def test_many_micro_steps_take_what_a_few_of_them_say(strategy, load, monkeypatch):
    start = {**NCCL, "strategy": strategy, "workload.grad_accum": 16, "workload.microbatch": 1}
    first = load(start)
    stopwatch = Stopwatch(first)
    other = other_than(first, load, start, PLAYED[0])
    played = []
    whole = module.play
    monkeypatch.setattr(
        module, "play", lambda one, *a, **k: played.append(one) or whole(one, *a, **k)
    )
    assert stopwatch.step_times([other])[0] == pytest.approx(step_time(other), rel=1e-9, abs=0)
    assert {one.workload.grad_accum for one in played} == {*module.MICRO_STEPS}


@pytest.mark.slow
def test_micro_steps_that_differ_are_all_played(load, monkeypatch):
    start = {**NCCL, "workload.grad_accum": 16, "workload.input": {"per_sample": "1 ms"}}
    first = load(start)
    stopwatch = Stopwatch(first)
    monkeypatch.setattr(stopwatch, "metrics", Metrics(step_time_s=1.01 * step_time(first)))
    other = other_than(first, load, start, PLAYED[0])
    assert stopwatch.step_times([other])[0] == pytest.approx(step_time(other), rel=1e-12, abs=0)


def test_plans_of_one_process_are_those_of_other_devices_and_not_of_another_batch(load):
    start = {**FEW, "strategy": "data_parallel", "workload.global_batch": 6}
    start |= {"workload.microbatch": None}
    first = load(start)
    slower = with_numbers(first, {"cluster.device.memory_bandwidth": 1e9})
    fewer = other_than(first, load, start, {"workload.global_batch": 3})
    mine, its, other = (plans_of(one, Planner(one.cluster)) for one in (first, slower, fewer))
    assert its is mine
    assert other != mine


def test_a_script_of_a_run_that_is_gone_is_timed_on_other_devices(load):
    first = load(NCCL)
    other = other_than(first, load, NCCL, OTHER_DEVICES[0])
    recorded = module.RecordedScript()
    metrics = times_alone(first, listen=recorded.listen).metrics
    found = Stopwatch(first, recorded, metrics).step_times([other])[0]
    assert found == pytest.approx(step_time(other), rel=1e-12, abs=0)
