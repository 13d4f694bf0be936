"""Outlook: what a step and the way to a target cost, and MLPerf's minutes from simulated steps."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each

import simdp
from simdp.job.targets import Benchmark

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LOSS = {"workload.steps": 40, "workload.microbatch": 4}


def test_the_way_to_the_target_is_samples_over_throughput(load):
    result = simdp.simulate(load(target={"samples": 1e6}))
    m, told = result.metrics, result.target
    assert told["kind"] == "samples"
    assert told["samples"] == {"mean": 1e6, "sd": 0.0}
    assert told["steps"] == 31250  # of 4 ranks with 8 samples
    assert told["time_s"]["mean"] == pytest.approx(1e6 / m["throughput_samples_per_s"])
    million = result.cost["million_samples"]
    assert told["cost_usd"]["mean"] == pytest.approx(million["cost_usd"])
    assert told["energy_kwh"]["p95"] == pytest.approx(million["energy_kwh"])


def test_epochs_are_of_the_data_set(load):
    assert simdp.simulate(load(target={"epochs": 3})).target["samples"]["mean"] == 3 * 64


def test_a_cost_has_the_date_of_a_list_price_and_none_of_the_users_own(load):
    cost = simdp.simulate(load()).cost
    assert (cost["price_usd_per_h"], cost["price_date"]) == (pytest.approx(1.3), "2026-05")
    own = simdp.simulate(load({"cluster.price": "2 USD/h"})).cost
    assert (own["price_usd_per_h"], own["price_date"]) == (pytest.approx(2.0), None)
    assert own["step"]["cost_usd"] == pytest.approx(cost["step"]["cost_usd"] * 2 / 1.3)
    nobody = {"peak": {"float32": "1 TFLOP/s"}, "memory": "1 GB", "memory_bandwidth": "1 TB/s"}
    assert simdp.simulate(load({"cluster.device": nobody})).cost == {}


def test_costs_and_targets_are_in_result_json_and_come_back(load, tmp_path):
    study = simdp.sweep(load(target={"epochs": 3}))
    study.save(tmp_path / "result.json")
    (point,) = type(study).load(tmp_path / "result.json").points
    assert (point.cost, point.target) == (study.points[0].cost, study.points[0].target)


def test_a_run_ends_with_the_step_that_reaches_the_loss(load):
    whole = simdp.simulate(load(LOSS))
    losses = whole.metrics["loss"]
    wanted = float(np.mean(losses[10:15]))
    target = {"loss": wanted * (1 + 1e-9), "window": 5}
    result = simdp.simulate(load(LOSS, target=target))
    steps = len(result.metrics["loss"])
    assert 5 <= steps <= 15
    assert result.metrics["loss"] == losses[:steps]
    assert (result.target["reached"], result.target["steps"]) == (True, steps)
    assert result.target["samples"]["mean"] == 16 * steps
    assert result.target["time_s"]["mean"] == result.metrics["simulated_s"]
    assert result.target["time_s"]["mean"] == pytest.approx(whole.step_ends[:, steps].max())


def test_a_loss_that_is_never_reached_is_said_so_and_the_run_ends_as_ever(load):
    result = simdp.simulate(load(LOSS, target={"loss": -1.0}))
    assert len(result.metrics["loss"]) == 40
    assert result.target == {"kind": "loss", "reached": False} | dict.fromkeys(
        ("steps", "samples", "time_s", "cost_usd", "energy_kwh")
    )


def test_a_run_that_goes_on_from_a_state_stops_where_the_whole_one_does(load):
    last = np.mean(simdp.simulate(load(LOSS)).metrics["loss"][20:25])
    scenario = load(LOSS, target={"loss": float(last), "window": 5})
    whole = simdp.simulate(scenario)
    assert whole.target["reached"]
    assert whole.target["steps"] > 6
    part = simdp.simulate(scenario, stop_after=5, keep_state=True)
    assert not part.target["reached"]
    rest = simdp.simulate(scenario, resume=part.state)
    assert rest.target == whole.target
    assert rest.metrics["loss"] == whole.metrics["loss"]


def test_nothing_is_left_of_a_run_that_has_reached_its_loss(load):
    scenario = load(LOSS, target={"loss": 100.0, "window": 5})
    done = simdp.simulate(scenario, keep_state=True)
    assert done.target["steps"] == 5
    with pytest.raises(simdp.ScenarioError, match="was reached after 5 steps"):
        simdp.simulate(scenario, resume=done.state)


def test_a_parameter_server_plays_to_its_end_and_says_when_the_loss_was_reached(load):
    server = {"kind": "parameter_server", "updates": "asynchronous"}
    losses = simdp.simulate(load(LOSS, strategy=server)).metrics["loss"]
    target = {"loss": float(np.mean(losses[20:25])), "window": 5}
    result = simdp.simulate(load(LOSS, target=target, strategy=server))
    steps = next(k for k in range(5, 41) if np.mean(losses[k - 5 : k]) <= target["loss"])
    assert result.metrics["loss"] == losses
    assert result.target["steps"] == steps
    assert result.target["time_s"]["mean"] == result.step_ends[:, steps].max()


REFUSED = [
    ({"loss": 0.1}, {"numerics": False}, "only replicas that learn can reach a loss"),
    ({"loss": 0.1, "window": 50}, {"workload.steps": 40}, "a mean over 50 steps never comes about"),
    ({"benchmark": "resnet"}, {}, "resnet has been run with batches of 1632 to 67840, not of 32"),
    ({"epochs": 2}, {"workload.mode": "inference"}, "nothing is learned"),
]


@for_each(("target", "keys", "said"), REFUSED)
def test_targets_that_cannot_be_told_are_refused(refuse, target, keys, said):
    (line,) = refuse(keys, target=target)
    assert line.startswith("target")
    assert said in line


# MLPerf's minutes from simulated throughput -------------------------------------------------------


def mlperf_rows():
    lines = (ROOT / "tests/golden/mlperf_minutes.csv").read_text().splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return [row for row in rows if row["benchmark"] == "resnet"]


def errors_of(path, rows):
    """Error of the minutes at every predicted point whose batch MLPerf's table covers."""
    submitter, major, minor = re.match(r"(\w+?)-.*v(\d)(\d)_", path.stem).groups()
    scenario, wanted = simdp.load_scenario(path), Benchmark(benchmark="resnet")
    found = []
    for point, one in zip(scenario.measured.points, scenario.measured_scenarios()[0], strict=True):
        n = one.cluster.world_size
        batch = one.workload.samples_per_step(n)
        if point.role == "calibration" or wanted.problem_with(batch, 0):
            continue
        told = simdp.simulate(one.model_copy(update={"target": wanted})).target
        minutes = told["time_s"]["mean"] / 60
        alike = [
            float(row["median_min"])
            for row in rows
            if (row["submitter"].lower(), row["round"]) == (submitter, f"v{major}.{minor}")
            and (int(row["gpus"]), int(row["batch"])) == (n, batch)
        ]
        found.append(min((minutes / one - 1 for one in alike), key=abs))
    return found


def test_nvidias_minutes_on_64_gpus_follow_from_the_steps_of_8():
    path = ROOT / "scenarios/validation/mlperf/azure-v20_resnet50.yaml"
    assert errors_of(path, mlperf_rows()) == [pytest.approx(0.003, abs=2e-3)]


@pytest.mark.long
def test_minutes_follow_from_simulated_throughput_within_8_percent():
    """The mean over all points, none of them calibrated on; the worst one is 22 % off."""
    paths = sorted((ROOT / "scenarios/validation/mlperf").glob("*resnet50.yaml"))
    errors = np.abs([error for path in paths for error in errors_of(path, mlperf_rows())])
    assert len(errors) == 20
    assert errors.mean() < 0.08
    assert errors.mean() == pytest.approx(0.055, abs=3e-3)
    assert errors.max() < 0.23


# MLPerf's energy from simulated steps -------------------------------------------------------------

H100_NODES = {
    "world_size": 8,
    "devices_per_node": 8,
    "device": {
        "peak": {"float32": "67 TFLOP/s", "float16": "989.5 TFLOP/s"},
        "memory": "80 GB",
        "memory_bandwidth": "3350 GB/s",
        "half_work": "1.25 GFLOP",  # half a wave of tiles, as in scenarios/validation/mlperf
        # Of a hung GPU, at rest, and of the node that trains ResNet-50 alone at 7,091 W.
        "power": {"rest": "70 W", "waiting": "150 W", "busy": "669 W", "node": "1740 W"},
    },
    "topology": "switch",
    "link": "nvlink4",
    "inter_node": {"topology": "switch", "link": "ib-ndr", "links_per_node": 8},
}


def test_energy_of_eight_nodes_from_simulated_steps_is_within_10_percent(load):
    """Calibrated on one node's time and watts; 35 epochs of batch 3,264 on both.

    Steps come out 7 % too short, and kernels of 51 images, which fill no GPU, are taken to draw
    what those of 408 do: 2.14 kWh where 1.973 were read. From measured times it is 3 % too little
    (see `test_money`).
    """
    one_step = 13.369 * 60 / (35 * 1_281_167 / 3264)
    scenario = load(
        cluster=H100_NODES,
        workload={
            "model": "resnet50",
            "optimizer": "lars",
            "microbatch": 408,
            "precision": "mixed",
            "compute": {
                "kind": "measured",
                "points": [{"microbatch": 408, "step_time": f"{1e3 * one_step - 0.43} ms"}],
            },
        },
        strategy={
            "kind": "horovod",
            "cycle_time": "0.1 ms",
            "fusion_threshold": "64 MiB",
            "merge": "all",
        },
        collectives={"cost": "nccl"},
        numerics=False,
        target={"epochs": 35, "num_samples": 1_281_167},
    )
    eight = {"cluster.world_size": 64, "workload.microbatch": 51}
    targets = [simdp.simulate(point(scenario, keys)).target for keys in ({}, eight)]
    minutes = [told["time_s"]["mean"] / 60 for told in targets]
    energies = [told["energy_kwh"]["mean"] for told in targets]
    assert minutes[0] == pytest.approx(13.369, rel=5e-3)
    assert energies[0] == pytest.approx(1.580, rel=0.01)
    assert minutes[1] / 2.543 - 1 == pytest.approx(-0.065, abs=5e-3)
    assert energies[1] == pytest.approx(1.973, rel=0.1)
    assert energies[1] / 1.973 - 1 == pytest.approx(0.086, abs=5e-3)


def point(scenario, keys):
    """One point of the scenario with some keys set."""
    swept = scenario.model_copy(update={"sweep": {key: [value] for key, value in keys.items()}})
    return swept.points()[0][1].model_copy(update={"sweep": {}})
