"""Answers: what other runs tell of a single one, and which are too large to be asked."""

from io import StringIO

import pytest
from for_each import for_each
from rich.console import Console

import simdp
from simdp.reports.table import fact_rows, slowest
from simdp.scenario import checked
from simdp.studies import answers

SLOW = {"kind": "slow_rank", "rank": 1, "factor": 1.5}
CLUSTER = {
    "world_size": 4,
    "device": "a100-sxm4-80gb",
    "topology": "ring",
    "link": "nvlink3",
    "stragglers": [SLOW],
}
WORKLOAD = {
    "model": {"kind": "mlp", "widths": [64, 64, 8]},
    "dataset": {"kind": "regression", "num_samples": 96},
    "microbatch": 8,
}


SWEPT = {"workload": WORKLOAD, "sweep": {"strategy": ["ddp", "horovod"]}}


def as_lines(table):
    console = Console(width=100, file=StringIO())
    console.print(table)
    return [line for line in console.file.getvalue().splitlines() if line.strip(" ─")]


def point(tmp_path, cluster=None, **other):
    raw = {"cluster": {**CLUSTER, **(cluster or {})}, "workload": WORKLOAD, **other}
    return simdp.sweep(checked(raw, tmp_path)).points[0]


def metrics(*args, **other):
    return point(*args, **other).metrics


def test_what_stragglers_cost_is_what_the_same_run_takes_without_them(tmp_path):
    even = metrics(tmp_path, {"stragglers": []})
    assert even["without_stragglers_s"] is None
    for shared in (
        {},
        {"topology": "switch", "collectives": {"all_reduce": "tree"}},  # played by the event clock
        {"strategy": "horovod"},  # whose messages depend on the network
    ):
        topology = {"topology": shared.pop("topology", "ring")}
        even = metrics(tmp_path, {**topology, "stragglers": []}, **shared)
        slow = metrics(tmp_path, topology, **shared)
        assert slow["without_stragglers_s"] == pytest.approx(even["step_time_s"], rel=1e-9)
        assert slow["without_stragglers_s"] < slow["step_time_s"]


def test_stragglers_that_a_run_does_not_reach_have_no_cost_in_it(tmp_path):
    pause = {"kind": "pause", "rank": 0, "every": "10 min", "duration": "40 s"}
    late = {"kind": "degraded_link", "rank": 1, "bandwidth": 0.5, "steps": [100, 200]}
    found = point(tmp_path, {"stragglers": [pause]})
    assert "too short for the pause" in found.remarks["not reached"]
    assert found.metrics["without_stragglers_s"] is None
    assert [one["seconds"] for one in found.lost] == [None]
    assert not [row for row in fact_rows(found) if "without" in row.label]

    both = point(tmp_path, {"stragglers": [pause, SLOW, late]})
    assert both.metrics["without_stragglers_s"] < both.metrics["step_time_s"]
    assert [one["seconds"] is None for one in both.lost] == [True, False, True]
    often = point(tmp_path, {"stragglers": [{**pause, "every": 1}]})
    assert often.lost[0]["seconds"] > 0
    swept = simdp.sweep(checked({**SWEPT, "cluster": {**CLUSTER, "stragglers": [pause]}}, tmp_path))
    assert [one["seconds"] for one in swept.points[-1].lost] == [None]


def test_large_runs_and_points_of_a_sweep_are_not_repeated(tmp_path, monkeypatch):
    sweep = {"cluster.world_size": [2, 4]}
    assert metrics(tmp_path, sweep=sweep)["without_stragglers_s"] is None
    assert metrics(tmp_path, strategy="parameter_server")["without_stragglers_s"] is None
    monkeypatch.setattr(answers, "MAX_EVENT_RANK_STEPS", 1)
    assert metrics(tmp_path, strategy="horovod")["without_stragglers_s"] is None
    monkeypatch.setattr(answers, "MAX_RANKS", 3)
    assert metrics(tmp_path)["without_stragglers_s"] is None


@pytest.mark.slow
def test_a_calibrated_machine_gives_the_interval_of_a_step(tmp_path):
    for machine, wide in (("dgx-a100", False), ("lambda-a100-sxm4-vm", True)):
        on = {"machine": machine, "world_size": 8}
        raw = {"cluster": on, "workload": {**WORKLOAD, "model": "resnet50"}, "numerics": False}
        raw["workload"].pop("dataset")
        points = [{"microbatch": WORKLOAD["microbatch"], "step_time": "99 ms"}]
        raw["workload"]["compute"] = {"kind": "measured", "points": points}
        m = simdp.sweep(checked(raw, tmp_path)).points[0].metrics
        low, high = m["interval_s"]
        assert low < m["step_time_s"] < high
        assert (high - low > 0.15 * m["step_time_s"]) == wide


def test_a_cluster_that_nobody_has_measured_gives_the_interval_of_its_class(tmp_path):
    """NCCL's model times it; links that are played say nothing of how far they are off."""
    for n in (1, 4):
        m = metrics(tmp_path, {"world_size": n, "stragglers": []})
        low, high = m["interval_s"]
        assert low < 0.8 * m["step_time_s"]
        assert high > 1.25 * m["step_time_s"]
    ring = {"collectives": {"all_reduce": "ring", "cost": "links"}}
    assert metrics(tmp_path, {"stragglers": []}, **ring)["interval_s"] is None


# What is lost, by cause, rank and node ------------------------------------------------------------


JITTER = {"kind": "lognormal", "sigma": 0.3}
NODES = {"devices_per_node": 2, "inter_node": {"link": "ib-hdr"}}


def test_what_a_straggler_costs_is_what_the_same_draws_take_without_it(tmp_path):
    """A straggler of factor 1 in its place leaves the others their numbers, and so their draws."""
    both, none = [SLOW, JITTER], {"kind": "slow_rank", "rank": 0, "factor": 1.0}
    found = point(tmp_path, {"stragglers": both})
    step_time = found.metrics["step_time_s"]
    for place, one in enumerate(found.lost):
        others = [none if i == place else each for i, each in enumerate(both)]
        without = metrics(tmp_path, {"stragglers": others})["step_time_s"]
        assert step_time - one["seconds"] == pytest.approx(without, rel=1e-9)
    assert [one["cause"] for one in found.lost] == ["slow_rank", "lognormal"]
    assert [one["ranks"] for one in found.lost] == [[1], None]
    alone = point(tmp_path)
    saved = alone.metrics["step_time_s"] - alone.metrics["without_stragglers_s"]
    assert alone.lost == [
        {"cause": "slow_rank", "ranks": [1], "nodes": [0], "seconds": pytest.approx(saved)}
    ]


def test_lost_time_is_told_by_ranks_and_nodes(tmp_path):
    stragglers = [
        {"kind": "slow_node", "node": 1, "factor": 1.2},
        {"kind": "degraded_link", "node": 0, "bandwidth": 0.5},
        {"kind": "degraded_link", "rank": 3, "bandwidth": 0.5},
    ]
    found = point(tmp_path, {**NODES, "stragglers": stragglers})
    assert [one["ranks"] for one in found.lost] == [[2, 3], [0, 1], [3]]
    assert [one["nodes"] for one in found.lost] == [[1], [0], [1]]
    assert found.lost[0]["seconds"] > 0
    assert found.lost[1]["seconds"] > 0


@for_each("overheads", [{}, {"compute_slowdown": 1.0}])
def test_the_slowest_rank_of_each_step_is_named(overheads, tmp_path):
    """Also where ranks that wait in a collective compute more slowly meanwhile."""
    found = point(tmp_path, {"overheads": overheads})
    (one,) = found.slowest
    assert (one["rank"], one["node"], one["steps"]) == (1, 0, 2)
    assert one["seconds"] == pytest.approx(found.lost[0]["seconds"], rel=0.3)


def test_a_run_without_stragglers_tells_nothing_of_them(tmp_path):
    found = point(tmp_path, {"stragglers": []})
    assert (found.lost, found.slowest) == ([], [])


def test_what_is_lost_comes_back_from_result_json(tmp_path):
    raw = {"cluster": {**CLUSTER, "stragglers": [SLOW, JITTER]}, "workload": WORKLOAD}
    study = simdp.sweep(checked(raw, tmp_path))
    study.save(tmp_path / "result.json")
    loaded = simdp.results.result.Study.load(tmp_path / "result.json").points[0]
    assert loaded.lost == study.points[0].lost
    assert loaded.slowest == study.points[0].slowest


def test_the_summary_splits_what_several_stragglers_cost(tmp_path):
    keys = {**NODES, "stragglers": [{"kind": "slow_node", "node": 1, "factor": 2}, JITTER]}
    said = point(tmp_path, keys).summary()
    assert "without stragglers:" in said
    assert "  without slow_node:" in said
    assert "% less (ranks 2 and 3)" in said
    assert "  without lognormal:" in said
    assert "slowest most often:" in said
    assert "steps; node 1, in 2" in said
    alone = point(tmp_path).summary()
    assert "without stragglers:" in alone
    assert "slowest" not in alone  # that is no news


def test_the_table_of_the_slowest_adds_up_nodes(tmp_path):
    keys = {**NODES, "stragglers": [JITTER]}
    raw = {"cluster": {**CLUSTER, **keys}, "workload": {**WORKLOAD, "steps": 12}}
    study = simdp.sweep(checked(raw, tmp_path))
    lines = as_lines(slowest(study))
    assert "the slowest of each step: us per step beyond the median" in lines[0]
    steps = {line.split()[0] + line.split()[1]: int(line.split()[2]) for line in lines[2:]}
    each = [count for who, count in steps.items() if who.startswith("rank")]
    assert sum(each) == 11
    assert steps["node0"] == steps.get("rank0", 0) + steps.get("rank1", 0)
    assert (
        slowest(simdp.sweep(checked({**raw, "cluster": CLUSTER | {"stragglers": []}}, tmp_path)))
        is None
    )


def test_a_step_that_is_faster_than_the_devices_peak_allows_is_a_remark(tmp_path):
    """Measured times of another device or dtype, or kernels with fewer FLOPs, pass the peak."""
    workload = {"model": "resnet50", "microbatch": 8}
    for step_time, is_said in (("0.5 ms", True), ("1 s", False)):
        compute = {"kind": "measured", "points": [{"microbatch": 8, "step_time": step_time}]}
        raw = {"cluster": CLUSTER, "workload": {**workload, "compute": compute}, "numerics": False}
        found = simdp.simulate(checked(raw, tmp_path))
        assert (found.metrics["mfu"] > 1) is is_said
        assert ("MFU above 100 %" in found.remarks) is is_said


def test_a_measured_step_that_contradicts_the_devices_figures_is_a_remark(tmp_path):
    """Steps that are twice as fast or three times as slow are of another job, or wait."""
    cluster = {**CLUSTER, "device": "a100-sxm4-80gb"}
    workload = {"model": "resnet50", "microbatch": 256}
    own = 0.25
    for step_time, said in ((0.1, "times faster than"), (own, None), (1.0, "times as long as")):
        points = [{"microbatch": 256, "step_time": f"{step_time} s"}]
        compute = {"kind": "measured", "points": points}
        raw = {"cluster": cluster, "workload": {**workload, "compute": compute}, "numerics": False}
        line = simdp.simulate(checked(raw, tmp_path)).remarks.get("measured step")
        assert (line is None) if said is None else (line is not None and said in line)
        if line is not None:
            assert line.endswith("check dtype, lengths and what the step held")
