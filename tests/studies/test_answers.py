"""Answers: what other runs tell of a single one, and which are too large to be asked."""

import pytest

import simdp
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


def metrics(tmp_path, cluster=None, **other):
    raw = {"cluster": {**CLUSTER, **(cluster or {})}, "workload": WORKLOAD, **other}
    return simdp.sweep(checked(raw, tmp_path)).points[0].metrics


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
    for machine, wide in (("dgx-a100", False), ("lambda-a100-sxm4", True)):
        on = {"machine": machine, "world_size": 8}
        raw = {"cluster": on, "workload": {**WORKLOAD, "model": "resnet50"}, "numerics": False}
        raw["workload"].pop("dataset")
        points = [{"microbatch": WORKLOAD["microbatch"], "step_time": "99 ms"}]
        raw["workload"]["compute"] = {"kind": "measured", "points": points}
        m = simdp.sweep(checked(raw, tmp_path)).points[0].metrics
        low, high = m["interval_s"]
        assert low < m["step_time_s"] < high
        assert (high - low > 0.15 * m["step_time_s"]) == wide
    assert metrics(tmp_path)["interval_s"] is None
