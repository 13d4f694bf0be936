"""Remarks: whether anybody has measured the hardware, and what measurements leave open."""

import json

import pytest

import simdp
from simdp.cli import run_command_line
from simdp.cluster.hardware import read_machine
from simdp.reports.answers import known
from simdp.scenario import checked
from simdp.scenario.remarks import calibration_of, remarks
from simdp.studies.collective import Request, answer
from tests.small_scenario import FAST, MINIMAL

WORKLOAD = {"model": {"kind": "mlp", "widths": [8, 4]}, "microbatch": 2}


def on(tmp_path, cluster, **other):
    raw = {"cluster": {"world_size": 8, **cluster}, "workload": WORKLOAD, "numerics": False}
    return remarks(checked({**raw, **other}, tmp_path))


def test_hardware_that_nobody_has_measured_says_so_in_one_line(tmp_path):
    hardware = {"device": "h100-sxm5-80gb", "link": "nvlink4"}
    found = on(tmp_path, hardware)
    assert found["calibration"] == "none: nobody has measured this hardware"
    timed = on(tmp_path, hardware, collectives={"cost": "nccl"})
    said = "NCCL's own model, with what clusters of this class reach (nvlink: simdp list constants)"
    assert timed["collectives"] == found["collectives"] == said


def test_it_is_remarked_how_collectives_are_timed(tmp_path):
    hardware = {"device": "h100-sxm5-80gb", "link": "nvlink4"}
    cases = [
        (
            hardware,
            {"cost": "links"},
            "simulated over the links (broadcast: ring, all_reduce: ring)",
        ),
        (
            hardware,
            {"all_reduce": "tree"},
            "simulated over the links (all_reduce: tree); others: NCCL's own model, with what "
            "clusters of this class reach (nvlink: simdp list constants)",
        ),
        ({"machine": "dgx-h100"}, {}, "NCCL's own model, with constants of dgx-h100"),
    ]
    for cluster, collectives, said in cases:
        assert on(tmp_path, cluster, collectives=collectives)["collectives"] == said
    assert "collectives" not in on(tmp_path, {**hardware, "world_size": 1})


def test_a_machines_constants_that_measurements_leave_open_are_named(tmp_path):
    found = on(tmp_path, {"machine": "lambda-a100-sxm4-vm"})
    assert (
        found["calibration"] == "lambda-a100-sxm4-vm: network calibrated, compute by its data sheet"
    )
    assert found["undetermined"].startswith("compute_slowdown of 0.4 to 10 fits as well")
    found = on(tmp_path, {"machine": "dgx-h100"})
    assert found["undetermined"].startswith("hop.inter.simple, hop.inter.ll")
    assert "undetermined" not in on(tmp_path, {"machine": "dgx-h100", "world_size": 1})


def test_a_machines_caveats_and_its_name_of_today_are_remarked(tmp_path):
    old, new = (on(tmp_path, {"machine": f"lambda-a100-sxm4{end}"}) for end in ("", "-vm"))
    assert old["caveats"] == new["caveats"]
    assert new["caveats"].startswith("Virtual machines without NVLink between GPUs")
    said = "lambda-a100-sxm4 is now called lambda-a100-sxm4-vm; write that name"
    assert (old["machine"], "machine" in new) == (said, False)
    assert "caveats" not in on(tmp_path, {"machine": "dgx-a100"})


def test_hardware_that_is_not_the_machines_is_named(tmp_path):
    own = {"device": "a100-sxm4-80gb", "inter_node": {"links_per_node": 1}}
    said = on(tmp_path, {"machine": "dgx-h100", **own})["calibration"]
    assert said.endswith("sheet, but device and inter_node are the scenario's own")
    same = {"device": "h100-sxm5-80gb", "link": "nvlink4"}
    assert "own" not in on(tmp_path, {"machine": "dgx-h100", **same})["calibration"]


def test_hardware_in_place_of_a_machines_network_is_named_with_its_part(tmp_path):
    tree = {"kind": "fat_tree", "ports_per_leaf": 32, "oversubscription": 8}
    dgx, by_cost = {"machine": "dgx-h100", "world_size": 16}, "part in times by collectives.cost: "
    cases = [
        (
            {"inter_node": {"topology": tree}},
            {},
            "inter_node.topology (fat_tree, oversubscription: 8, ports_per_leaf: 32) is simulated "
            "over the links, in place of the cost of dgx-h100 (collectives.over_links: [] keeps "
            "that)",
        ),
        (
            {"inter_node": {"topology": "dragonfly"}},
            {"over_links": []},
            f"inter_node.topology (dragonfly) has no {by_cost}nccl; to simulate its links write "
            "collectives.cost: links",
        ),
        (
            {"topology": {"kind": "torus2d", "dims": [2, 4]}},
            {},
            f"topology (torus2d, dims): only the bandwidth out of a device has a {by_cost}nccl",
        ),
        (
            {"inter_node": {"link": "100gbe"}},
            {},
            f"inter_node.link.alpha and inter_node.link.transport: no {by_cost}nccl, which has its "
            "own constants",
        ),
    ]
    for cluster, collectives, said in cases:
        assert on(tmp_path, dgx | cluster, collectives=collectives)["network"] == said
    assert "network" not in on(tmp_path, dgx)
    assert "network" not in on(tmp_path, dgx | {"link": "nvlink4"})


def test_a_summary_says_which_oversubscription_the_traffic_does_not_reach(tmp_path):
    def remarked(topology, all_reduce="hierarchical"):
        inter = {"topology": topology, "link": "ib-ndr", "links_per_node": 2}
        cluster = {"device": "h100-sxm5-80gb", "link": "nvlink4", "inter_node": inter}
        raw = {
            "cluster": {**cluster, "world_size": 8, "devices_per_node": 2},
            "workload": WORKLOAD | {"steps": 2},
            "collectives": {"cost": "links", "all_reduce": all_reduce},
            "numerics": False,
        }
        return simdp.simulate(checked(raw, tmp_path)).remarks.get("oversubscription")

    said = (
        "oversubscription is not reached: traffic keeps to the {}: no link of the {} carries bytes"
    )
    rails, tree = {"kind": "rail_optimised"}, {"kind": "fat_tree", "ports_per_leaf": 4}
    assert remarked(rails | {"oversubscription": 8}) == said.format("rails", "spine")
    assert remarked(rails | {"oversubscription": 8}, "ring") is None
    assert remarked(rails) is None
    assert remarked(tree | {"oversubscription": 2}) is None
    within = {"ports_per_leaf": 8, "oversubscription": 2}
    assert remarked(tree | within) == said.format("leaf switches", "spine")
    pods = {"levels": 3, "leaves": 2, "pod_oversubscription": 2}
    assert remarked(tree | pods) == "pod_" + said.format("pods", "core switches")


def test_own_nodes_whose_switch_adds_are_told_the_key_that_uses_it(tmp_path, capsys):
    inter = {"link": "efa-100g", "links_per_node": 32}
    own = {"device": "h100-sxm5-80gb", "devices_per_node": 8, "link": "nvlink4"}
    own |= {"topology": "switch", "inter_node": inter, "world_size": 16}
    written = {"cost": {"kind": "nccl", "algorithms": ["ring", "tree", "nvls"]}}
    said = (
        "not counted, though NVSwitches of nvlink4 have it; write collectives: {cost: {kind: nccl, "
        "algorithms: [ring, tree, nvls]}}"
    )
    assert on(tmp_path, own)["NVLS"] == said
    silent = [
        (own, written),
        (own, {"cost": {"kind": "nccl", "algorithms": ["ring", "tree"]}}),
        (own, {"cost": "links"}),
        (own | {"device": "a100-sxm4-80gb", "link": "nvlink3"}, {}),
        (own | {"topology": "ring"}, {}),
        ({"machine": "dgx-h100", "world_size": 16}, {}),
        (own | {"devices_per_node": 1}, {}),
    ]
    for cluster, collectives in silent:
        assert "NVLS" not in on(tmp_path, cluster, collectives=collectives)

    def timed(name, cluster, **other):
        path = tmp_path / f"{name}.yaml"
        raw = {"cluster": cluster, "workload": WORKLOAD, "numerics": False, **other}
        path.write_text(json.dumps(raw))
        (curve,) = answer(Request("all_reduce", path, sizes="1GiB")).curves
        return curve.points[0].seconds, curve.remarks

    slow, remarked = timed("own", own)
    fast, silence = timed("written", own, collectives=written)
    machine, _ = timed("machine", {"machine": "aws-p5", "world_size": 16})
    assert (remarked, silence) == ((f"NVLS: {said}",), ())
    assert (
        run_command_line(
            ["run", str(tmp_path / "own.yaml"), "--no-plots", "--out", f"{tmp_path}/x"]
        )
        == 0
    )
    printed = " ".join(capsys.readouterr().out.split())
    assert f"NVLS: {said} " in printed  # brackets and all
    assert slow > 1.3 * fast == pytest.approx(1.3 * machine, rel=0.01)


def test_a_slow_rank_that_is_faster_than_the_others_is_remarked(tmp_path):
    slow = {"kind": "slow_rank", "rank": 1, "factor": 0.7}
    said = on(tmp_path, {"machine": "dgx-h100", "stragglers": [slow]})["straggler"]
    assert said.startswith("rank 1 is the fastest: a factor below 1 takes less time; for 70 % of")
    assert said.endswith("factor: 1.43")
    fair = on(tmp_path, {"machine": "dgx-h100", "stragglers": [{**slow, "factor": 1.0}]})
    assert "straggler" not in fair
    node = {"kind": "slow_node", "node": 0, "factor": 0.5}
    said = on(tmp_path, {"machine": "dgx-h100", "stragglers": [node]})["straggler"]
    assert said.startswith("node 0 is the fastest: ")


def test_a_machine_that_is_gone_is_as_one_that_nobody_measured(tmp_path):
    entry = read_machine("dgx-h100", tmp_path)
    own = tmp_path / "own.yaml"
    own.write_text("cluster: {device: h100-sxm5-80gb}\nsource: mine\n")
    scenario = checked({**MINIMAL, "cluster": {"machine": "own.yaml", "world_size": 1}}, tmp_path)
    assert calibration_of(scenario) is None is not entry.calibration
    own.unlink()
    assert calibration_of(scenario) is None


def test_remarks_are_in_every_result_and_come_back_with_it(tmp_path):
    study = simdp.sweep(checked(MINIMAL, tmp_path))
    study.save(tmp_path / "result.json")
    (point,) = simdp.Study.load(tmp_path / "result.json").points
    assert point.remarks == study.points[0].remarks
    assert list(point.remarks) == ["calibration", "collectives"]


def calibration_with(tmp_path, measured, **keys):
    measured = {
        "source": "me",
        "points": [{"step_time": "1 ms", "role": "calibration"}],
        **measured,
    }
    study = simdp.sweep(checked({**MINIMAL, "measured": measured, **keys}, tmp_path))
    return {point.remarks["calibration"] for point in study.points}


def test_measured_points_of_a_scenario_calibrate_nothing(tmp_path):
    nothing = {
        "none: no constant was fitted; validate holds this scenario against its measured points, 1"
    }
    assert calibration_with(tmp_path, {}) == nothing
    assert calibration_with(tmp_path, {}, sweep={"workload.microbatch": [4, 8]}) == nothing
    fitted = {
        "calibration": {
            "data": "a table",
            "intervals": {"cluster.link.alpha": ["4 us", "6 us"]},
            "residual": "2 %",
        }
    }
    assert calibration_with(tmp_path, fitted) == {"by the scenario's measured.calibration"}
    machine = {"cluster": {"machine": "dgx-h100", "world_size": 4}}
    by_entry = "dgx-h100: network calibrated, compute by its data sheet"
    assert calibration_with(tmp_path, {}, **machine) == {by_entry}


def test_constants_of_a_scenario_are_not_said_to_be_the_machines(tmp_path):
    machine = {"machine": "dgx-a100", "world_size": 16}
    usual = "NCCL's own model, with constants of dgx-a100"
    assert on(tmp_path, machine)["collectives"] == usual
    own = {"cost": {"kind": "nccl", "network": "tcp"}}
    found = on(tmp_path, machine, collectives=own)["collectives"]
    assert found == f"{usual}, but cost.network of this scenario"


def test_the_source_of_compute_is_named_where_no_device_was_fitted(tmp_path):
    compute = {"kind": "measured", "points": [{"microbatch": 8, "step_time": "20 ms"}]}
    measured = on(tmp_path, {"machine": "dgx-h100"}, workload={**WORKLOAD, "compute": compute})
    assert measured["calibration"] == "dgx-h100: network calibrated, compute as measured"


def test_what_a_job_alone_plays_is_named(tmp_path):
    failing = {"device": "h100-sxm5-80gb", "link": "nvlink4"}
    failing["failures"] = [{"kind": "exponential", "mtbf": "1000 h"}]
    said = on(tmp_path, failing, checkpoint={"every": 1, "write": "1 s"})["job"]
    assert said == "cluster.failures, checkpoint: not in this run; python -m simdp job plays them"
    whole = on(tmp_path, failing, recovery="restart")["job"]
    assert whole.startswith("cluster.failures, recovery: not in this run")


def test_channels_last_says_that_convolutions_do_not_change(tmp_path):
    compute = {"kind": "roofline", "memory_format": "channels_last"}
    images = {"model": "resnet18", "microbatch": 2, "compute": compute}
    said = on(tmp_path, {"machine": "dgx-a100"}, workload=images)["memory_format"]
    assert said.startswith("channels_last changes batch norms in bfloat16 alone: convolutions ")
    contiguous = {**images, "compute": "roofline"}
    for workload in (contiguous, {**WORKLOAD, "compute": compute}):
        assert "memory_format" not in on(tmp_path, {"machine": "dgx-a100"}, workload=workload)


HOST_LINK = {"alpha": "5 us", "bandwidth": "25 GB/s"}
OFFLOADED = {
    "cluster": {
        **FAST,
        **{"world_size": 4, "devices_per_node": 1, "host": {"link": HOST_LINK}},
        "inter_node": {"topology": "switch", "link": HOST_LINK},
    },
    "workload": {
        "model": {"kind": "mlp", "widths": [4096] * 9},
        **{"microbatch": 1, "steps": 2, "optimizer": "adamw"},
    },
    "strategy": {"kind": "zero3", "offload_optimizer": "cpu", "offload_param": "cpu"},
    "numerics": False,
}
"""134 million weights, whose state takes 16 bytes each on the hosts, over devices of 10 GB."""


def needs_of(tmp_path, **keys):
    study = simdp.sweep(checked({**OFFLOADED, **keys}, tmp_path))
    return [row.text for row in known(study.points, verbose=False) if row.key == "host memory"]


@pytest.mark.slow
def test_host_memory_that_nobody_has_checked_is_named_once(tmp_path):
    advice = "per node; set cluster.host_memory to check it"
    sizes = {"cluster.world_size": [4, 2, 1]}
    assert needs_of(tmp_path, sweep=sizes) == [f"needs 2.1 GB {advice}"]
    four = OFFLOADED["cluster"]
    large = {**four["device"], "memory": "20 GB"}
    assert needs_of(tmp_path, cluster={**four, "world_size": 1, "device": large})
    assert not needs_of(tmp_path, cluster={**four, "world_size": 4, "device": large})
    assert not needs_of(tmp_path, cluster={**four, "host_memory": "1 TB"})
    assert not needs_of(tmp_path, strategy="zero3")
