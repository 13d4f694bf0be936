"""What no step had to which a machine was fitted, and how much wider that makes intervals."""

from math import log
from pathlib import Path

import pytest
from for_each import for_each
from small_scenario import MINIMAL

import simdp
from benchmarks import new_steps as benchmark
from simdp.cluster.hardware import Calibration
from simdp.results.metrics import Metrics
from simdp.scenario import checked
from simdp.studies.answers import complete, interval_of
from simdp.studies.intervals import (
    BY_DATA_SHEET,
    LEAST,
    SPREAD,
    Known,
    as_kind,
    by_data_sheet,
    exposed_part,
    family_of,
    machine_calibration,
    scenario_novelty,
    step_novelty,
    step_novelty_spread,
    steps_of,
    with_pool,
)
from simdp.studies.validate import validate

STEPS = {"resnet50": [1, 2, 4], "vgg16": [1]}


@for_each(
    ("model", "num_nodes", "new"),
    [
        ("resnet50", 2, ()),
        ("resnet50", 3, ()),
        ("resnet50", 8, ("nodes",)),
        ("vgg16", 2, ("nodes",)),
        ("bert-base", 4, ("model",)),
        ("bert-base", 8, ("model", "nodes")),
    ],
)
def test_new_is_what_no_step_had(model, num_nodes, new):
    assert step_novelty(STEPS, model, num_nodes, 8) == new


def test_a_model_of_a_family_that_no_step_had_is_of_a_new_kind():
    new, fitted = ("model", "nodes"), {family_of(model) for model in STEPS}
    assert fitted == {"convolutional"}
    assert as_kind(new, family_of("bert-base"), fitted) == ["kind", "nodes"]
    assert as_kind(new, family_of("resnet18"), fitted) == ["model", "nodes"]
    assert as_kind(new, family_of("19.3M parameters"), fitted) == ["model", "nodes"]
    assert as_kind(new, "attention", {"convolutional", "unknown"}) == ["model", "nodes"]


def test_who_measured_inside_a_node_alone_knows_nothing_of_the_network():
    assert step_novelty({"resnet50": [1]}, "resnet50", 2, 4) == ("network",)
    assert step_novelty({"resnet50": [1]}, "vgg16", 2, 4) == ("model", "network")


def test_one_rank_and_a_machine_without_steps_have_nothing_new():
    assert step_novelty(STEPS, "bert-base", 1, 1) == step_novelty({}, "bert-base", 4, 8) == ()
    assert step_novelty_spread((), 0.5) == 0


def test_the_steps_of_all_that_is_known_are_joined():
    known = [
        Known(name, Calibration(data=name, steps={"resnet50": [n]}))
        for name, n in (("a", 1), ("b", 2))
    ]
    assert steps_of(known) == {"resnet50": [1, 2]}


def test_what_is_new_counts_by_the_part_of_a_step_that_communication_takes():
    assert step_novelty_spread(("model",), 0.5) == pytest.approx(SPREAD["model"] / 2)
    assert step_novelty_spread(("model",), 0.0) == LEAST
    both = step_novelty_spread(("model", "nodes"), 1.0)
    assert both == pytest.approx((SPREAD["model"] ** 2 + SPREAD["nodes"] ** 2) ** 0.5)


KNOWN = {"data": "a bench", "residual": "1 %", "steps": {"resnet50": [1]}}


def test_an_interval_is_wider_for_a_new_model(write):
    plain, new = (
        validate([write("box.yaml", measured={"calibration": {**KNOWN, "steps": steps}})]).points[
            -1
        ]
        for steps in ({"mlp 4-3": [1]}, {"resnet50": [1]})
    )
    assert (plain.new, new.new) == ((), ("kind",))
    assert new.simulated == plain.simulated
    assert new.low < plain.low < plain.high < new.high
    share = new.exposed_simulated / new.simulated
    reach = (log(new.high / new.simulated) ** 2 - log(plain.high / plain.simulated) ** 2) ** 0.5
    assert reach / 1.645 == pytest.approx(step_novelty_spread(("kind",), share))


def test_a_runs_interval_is_wider_for_a_new_model():
    raw = {**MINIMAL, "cluster": {"machine": "sia-rtx", "world_size": 8}, "numerics": False}
    found = []
    for model in ("resnet50", "resnet101"):
        raw["workload"] = {
            "model": model,
            "compute": {"kind": "measured", "points": [{"microbatch": 8, "step_time": "99 ms"}]},
            "microbatch": 8,
        }
        low, high = simdp.sweep(checked(raw, Path())).points[0].metrics["interval_s"]
        found.append(log(high / low))
    assert found[1] > 1.5 * found[0]


def on_machine(machine, world_size=16, **keys):
    raw = {**MINIMAL, "cluster": {"machine": machine, "world_size": world_size}}
    points = [{"microbatch": 8, "step_time": "20 ms"}]
    raw["workload"] = {
        "model": "resnet50",
        "compute": {"kind": "measured", "points": points},
        "microbatch": 8,
    }
    for key, value in keys.items():
        raw[key] = {**raw.get(key, {}), **value}
    return checked({**raw, "numerics": False}, Path())


def news_of(scenario):
    known = machine_calibration(scenario.cluster.machine, Path())
    return scenario_novelty(scenario, with_pool(known, scenario))


SLOW_NETWORK = {"link": {"alpha": "30 us", "bandwidth": "10 Gbit/s"}, "links_per_node": 1}


def test_what_a_scenario_writes_over_its_machine_is_new():
    for keys, new in (
        ({}, ("model",)),  # whose constants are those of tables of collectives
        ({"cluster": {"inter_node": SLOW_NETWORK}}, ("cluster",)),
        ({"cluster": {"inter_node": {"links_per_node": 4}}}, ("cluster",)),
        ({"cluster": {"inter_node": {"links_per_node": 8}}}, ("model",)),  # which the machine has
        ({"cluster": {"link": "nvlink3"}}, ("cluster",)),
        ({"cluster": {"device": "h200-sxm5-141gb"}}, ("model", "device")),
        ({"collectives": {"cost": "links"}}, ("cluster",)),
        ({"collectives": {"all_reduce": "ring"}}, ("cluster",)),
    ):
        assert news_of(on_machine("dgx-h100", **keys)) == new, keys
    beside = {"cluster": {"inter_node": SLOW_NETWORK}}
    assert news_of(on_machine("dgx-h100", 8, **beside)) == ("model",)  # one node does not use it


def test_another_network_is_known_no_better_than_a_cluster_that_is_written_by_hand():
    """dgx-h100 with 10 Gbit/s kept the interval of its own eight cards of 400 Gbit/s."""
    own = on_machine("dgx-h100")
    slow = on_machine("dgx-h100", cluster={"inter_node": SLOW_NETWORK})
    hardware = {"devices_per_node": 8, "device": "h100-sxm5-80gb", "link": "nvlink4"}
    raw = {**slow.resolved(), "cluster": {**hardware, "inter_node": SLOW_NETWORK, "world_size": 16}}
    by_hand = checked({**raw, "collectives": {"cost": "nccl"}}, Path())
    factors = [high / low for low, high in (interval_of(one, 1.0) for one in (own, slow, by_hand))]
    assert factors[0] < 1.2
    assert factors[1] > 4
    assert factors[1] == pytest.approx(factors[2], rel=0.3)


def test_a_precision_that_no_fitted_step_had_is_new():
    amp = on_machine("ptddp-v100", 8, workload={"precision": "amp"})
    assert news_of(on_machine("ptddp-v100", 8)) == ()
    assert news_of(amp) == ("precision",)
    assert news_of(on_machine("dgx-h100", workload={"precision": "amp"})) == ("model",)
    seen, new = (interval_of(one, 1.0) for one in (on_machine("ptddp-v100", 8), amp))
    assert new[0] < seen[0] < seen[1] < new[1]


def test_what_a_device_reaches_in_one_precision_does_not_tell_of_another():
    known = machine_calibration("mosaic-h100", Path())
    metrics = Metrics(**{"step_time_s": 2.0, "compute_s": 1.0, "update_s": 0.5})
    for dtype, spread in (("bfloat16", 0.0), ("float16", 0.75 * BY_DATA_SHEET)):
        workload = {"compute": {"kind": "roofline"}, "precision": {"kind": "amp", "dtype": dtype}}
        scenario = on_machine("mosaic-h100", 8, workload=workload)
        assert by_data_sheet(metrics, scenario, known) == pytest.approx(spread)


def test_compute_that_a_collective_stretches_counts_as_communication():
    """Of 0.6 s that are hidden, compute that takes 1.5 times as long loses 0.2 s."""
    metrics = Metrics(**{"step_time_s": 2.0, "exposed_comm_s": 0.1, "wait_s": 0.2, "comm_s": 0.7})
    slowed = on_machine("dgx-h100", cluster={"overheads": {"compute_slowdown": 0.5}})
    assert exposed_part(metrics, slowed) == pytest.approx((0.1 + 0.2 + 0.2) / 2.0)
    alone = on_machine("dgx-h100", cluster={"overheads": {"compute_slowdown": 0.0}})
    assert exposed_part(metrics, alone) == pytest.approx((0.1 + 0.2) / 2.0)


def point(measured, **more):
    usual = {"scenario": "a", "cluster": "a", "simulated": 1.0, "low": 0.9, "high": 1.1}
    return benchmark.Step(**{**usual, "measured": measured, "exposed": 0.5, **more})


def test_the_benchmark_finds_the_spread_that_holds_nine_in_ten():
    steps = [point(1.0 + number / 10, new=("model",)) for number in range(10)]
    spread = benchmark.spread(steps)
    assert sum(benchmark.is_inside(one, spread) for one in steps) == 9
    assert sum(benchmark.is_inside(one, 0.98 * spread) for one in steps) < 9


def run_on(machine, **workload):
    raw = {
        **MINIMAL,
        "cluster": {"machine": machine, "world_size": 2},
        "workload": {**MINIMAL["workload"], "steps": 2, **workload},
    }
    scenario = checked({**raw, "numerics": False}, Path())
    result = simdp.simulate(scenario)
    complete(scenario, result)
    return result.metrics


def test_compute_that_nobody_has_measured_widens_the_interval_by_its_part_of_the_step():
    scenario = checked({**MINIMAL, "cluster": {"machine": "dgx-h100", "world_size": 2}}, Path())
    metrics = Metrics(**{"step_time_s": 2.0, "compute_s": 1.0, "update_s": 0.5})
    known = Known(
        "a", Calibration(data="a", intervals={"cluster.overheads.hook": ["1 us", "2 us"]})
    )
    assert by_data_sheet(metrics, scenario, [known]) == pytest.approx(0.75 * BY_DATA_SHEET)
    ends = {"cluster.device.efficiency": [0.5, 0.6]}
    measured = Known("a", Calibration(data="a", intervals=ends))
    assert by_data_sheet(metrics, scenario, [known, measured]) == 0


def test_a_step_whose_compute_was_measured_is_known_better():
    points = [{"microbatch": 4, "step_time": "10 ms"}]
    sheet = run_on("dgx-h100")
    measured = run_on("dgx-h100", compute={"kind": "measured", "points": points})
    width = [m["interval_s"][1] / m["interval_s"][0] for m in (sheet, measured)]
    assert width[0] > width[1]
