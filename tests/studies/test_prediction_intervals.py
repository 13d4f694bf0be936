"""Intervals of simulated times, from those of the constants."""

from pathlib import Path

import pytest
import yaml
from for_each import for_each
from small_scenario import CLUSTER

import simdp
from simdp.cluster.hardware import DEVICES, Calibration
from simdp.errors import ScenarioError
from simdp.scenario import checked
from simdp.studies.intervals import (
    OWN,
    Known,
    as_unmeasured,
    interval,
    machine_calibration,
    residual,
    spread,
    variants,
)

BANDWIDTH = "cluster.link.bandwidth"
HOOK = "cluster.overheads.hook"


def known(intervals, place=OWN, rest=0.0):
    made = Calibration.model_validate({"data": "x", "intervals": intervals})
    return Known(place, made.model_copy(update={"residual": rest}))


def keys(scenario, *those):
    return [one.key for one in variants(scenario, those)]


# Sums --------------------------------------------------------------------------------------------


def test_changes_add_up_as_independent_ones_on_each_side():
    found = spread(10.0, [(7.0, 14.0), (6.0, 13.0)], 0.0)
    assert found.low == 10.0 - 5.0  # 3 and 4
    assert found.high == 10.0 + 5.0  # 4 and 3


def test_a_constant_that_moves_the_time_to_one_side_counts_once_and_there():
    assert spread(10.0, [(11.0, 14.0)], 0.0) == (10.0, 14.0)
    assert spread(10.0, [(9.0, 7.0)], 0.0) == (7.0, 10.0)


def test_what_the_fit_leaves_unexplained_holds_90_percent_of_a_normal_distribution():
    from scipy.stats import norm

    found = spread(10.0, [], 0.1)
    inside = norm.cdf(found.high, 10.0, 1.0) - norm.cdf(found.low, 10.0, 1.0)
    assert inside == pytest.approx(0.9, abs=1e-3)


def test_no_time_is_negative():
    assert spread(1.0, [(-5.0, 2.0)], 0.0).low == 0.0


def test_residuals_of_two_fits_are_independent():
    assert residual([known({}, rest=0.03), known({}, "box", rest=0.04)]) == pytest.approx(0.05)
    assert residual([]) == 0.0


# Constants ---------------------------------------------------------------------------------------


def test_an_interval_runs_both_ends_and_nothing_else_changes(load):
    scenario = load()
    (found,) = variants(scenario, [known({BANDWIDTH: ["20 GB/s", "30 GB/s"]})])
    assert (found.low.cluster.link.bandwidth, found.high.cluster.link.bandwidth) == (20e9, 30e9)
    assert found.low.workload is scenario.workload
    assert found.low.base == scenario.base
    back = found.low.model_copy(update={"cluster": scenario.cluster})
    assert back == scenario


def test_constants_of_any_section_may_have_intervals(load):
    ends = {
        "workload.microbatch": [4, 8],
        "strategy.bucket_cap": ["1 MiB", "25 MiB"],
        "cluster.device.efficiency": [0.2, 0.9],
        "cluster.stragglers.0.sigma": [0.0, 0.2],
    }
    cluster = {**CLUSTER, "stragglers": [{"kind": "lognormal", "sigma": 0.1}]}
    own = {"strategy.bucket_cap": "2 MiB", "cluster.device.efficiency": 0.5}
    scenario = load(own, cluster=cluster)
    found = {one.key: one for one in variants(scenario, [known(ends)])}
    assert list(found) == list(ends)
    assert found["workload.microbatch"].low.workload.microbatch == 4
    assert found["strategy.bucket_cap"].high.strategy.bucket_cap == 25 * 2**20
    assert found["cluster.stragglers.0.sigma"].high.cluster.stragglers[0].sigma == 0.2


def test_an_interval_of_a_constant_that_serves_every_protocol_counts(load):
    key = "collectives.cost.efficiency.intra"
    cost = {"kind": "nccl", "efficiency": {"intra": 0.5}}
    for place in (OWN, "box"):
        (found,) = variants(load({"collectives.cost": cost}), [known({key: [0.4, 0.6]}, place)])
        assert found.high.collectives.cost.efficiency.intra.ll128 == 0.6
    cost = {"kind": "nccl", "efficiency": {"intra": {"ll": 0.2, "ll128": 0.4, "simple": 0.5}}}
    assert keys(load({"collectives.cost": cost}), known({key: [0.4, 0.6]}, "box")) == []


def test_constants_of_the_network_are_idle_where_there_is_none(load):
    ends = {BANDWIDTH: ["20 GB/s", "30 GB/s"], HOOK: ["0 s", "1 us"]}
    inter = {"cluster.inter_node.link.alpha": ["1 us", "9 us"]}
    assert keys(load({"cluster.world_size": 1}), known(ends)) == [HOOK]
    two = {
        "cluster.devices_per_node": 2,
        "cluster.inter_node": {"link": {"alpha": "5 us", "bandwidth": "1 GB/s"}},
    }
    assert keys(load(two), known(inter)) == list(inter)
    assert keys(load({**two, "cluster.world_size": 2}), known(inter)) == []


def test_a_machines_constant_that_the_scenario_replaces_is_passed_over(load):
    narrow = {BANDWIDTH: ["26 GB/s", "30 GB/s"], "cluster.inter_node.link.alpha": ["1 us", "9 us"]}
    assert keys(load(), known(narrow, "box")) == []
    wide = {BANDWIDTH: ["30 GB/s", "25 GB/s"]}  # in either order
    assert keys(load(), known(wide, "box")) == [BANDWIDTH]


def test_the_scenarios_own_interval_counts_before_the_machines(load):
    own, machine = known({BANDWIDTH: ["24 GB/s", "26 GB/s"]}), {BANDWIDTH: ["1 GB/s", "99 GB/s"]}
    (found,) = variants(load(), [own, known(machine, "box")])
    assert found.high.cluster.link.bandwidth == 26e9


def test_an_interval_is_what_its_ends_take(load):
    scenario = load()
    found = interval(
        1.0,
        scenario,
        [known({BANDWIDTH: ["20 GB/s", "50 GB/s"]})],
        lambda several: [25e9 / one.cluster.link.bandwidth for one in several],
    )
    assert found == pytest.approx((0.5, 1.25))


def test_a_machines_file_says_how_well_its_constants_are_known(tmp_path):
    entry = {"cluster": {}, "source": "a bench"}
    (tmp_path / "box.yaml").write_text(yaml.safe_dump(entry))
    assert machine_calibration("box.yaml", tmp_path) == []
    assert machine_calibration(None, tmp_path) == []
    entry["calibration"] = {"data": "x", "residual": "2 %", "intervals": {HOOK: ["0 s", "1 us"]}}
    (tmp_path / "box.yaml").write_text(yaml.safe_dump(entry))
    (found,) = machine_calibration("box.yaml", tmp_path)
    assert (found.place, found.calibration.residual) == ("box.yaml", 0.02)


@for_each(
    ("name", "unmeasured"),
    [("a100-sxm4-80gb", DEVICES.figures("a100-sxm4-80gb")["efficiency"]["float32"]), (None, 0.3)],
)
def test_a_fitted_device_becomes_the_catalogues_if_it_has_one(load, name, unmeasured):
    figures = DEVICES.figures("a100-sxm4-80gb")
    device = {**figures, "name": name, "efficiency": 0.3}
    fit = {"data": "x", "intervals": {"cluster.device.efficiency": [0.2, 0.4]}}
    measured = {"source": "x", "points": [{"step_time": "1 s"}], "calibration": fit}
    bare, _ = as_unmeasured(load(cluster={**CLUSTER, "device": device}, measured=measured))
    assert bare.cluster.device.efficiency == unmeasured


@for_each(
    ("key", "ends", "line"),
    [
        (
            BANDWIDTH,
            ["26 GB/s", "30 GB/s"],
            f"{BANDWIDTH}: 26 GB/s ... 30 GB/s excludes the scenario's value; correct one of them.",
        ),
        (
            BANDWIDTH,
            ["26 GB/s", "30 s"],
            f"{BANDWIDTH}: {BANDWIDTH}: '30 s' is not a bandwidth; write for example \"25 GB/s\".",
        ),
        (
            "cluster.link.bandwith",
            ["1 GB/s", "2 GB/s"],
            ": cluster.link: unknown key 'bandwith'",
        ),
        (
            "cluster.topology",
            ["ring", "ring"],
            "cluster.topology: ring ... ring excludes the scenario's value; correct one of them.",
        ),
        (
            "clutser.link",
            [1, 2],
            ".clutser.link: clutser: has no constants; give a key of cluster, workload",
        ),
        ("name", ["a", "b"], ".name: name: has no constants; give a key of cluster, workload, ..."),
        (
            "cluster.link.alpha.x",
            [1, 2],
            ": cluster.link.alpha: {'kind': '5 us', 'x': 1} is not a time; write",
        ),
    ],
)
def test_an_interval_that_cannot_be_is_refused(key, ends, line, load):
    with pytest.raises(ScenarioError) as caught:
        variants(load(), [known({key: ends})])
    (found,) = caught.value.problems
    assert found.startswith(f"{OWN}.intervals")
    assert line in found


def test_an_interval_covers_both_classes_that_links_without_a_transport_may_be_of():
    found = {}
    for transport in (None, "rdma", "tcp"):
        link = {"alpha": "14 us", "bandwidth": "100 Gbit/s"}
        link |= {"transport": transport} if transport else {}
        cluster = {"world_size": 8, "devices_per_node": 4, "device": "l40s-48gb"}
        cluster |= {"link": "pcie4-x16", "inter_node": {"link": link}}
        model = {"kind": "parameters", "num_params": 10_000_000}
        raw = {"cluster": cluster, "workload": {"model": model, "microbatch": 4, "steps": 2}}
        metrics = simdp.sweep(checked(raw, Path())).points[0].metrics
        found[transport] = metrics["step_time_s"], *metrics["interval_s"]
    assert found[None][0] == found["rdma"][0]
    assert found[None][1] == found["rdma"][1]
    assert found["rdma"][2] < found["tcp"][0] < found[None][2]
