"""Sweeps: every point of the grid in its order, the same for any number of workers."""

import json
from pathlib import Path

import pytest

import simdp
from simdp.cluster.hardware import read_machine
from simdp.errors import DeadlockError, ScenarioError
from simdp.scenario import checked
from simdp.studies import many
from simdp.studies.sweep import sweep

TINY = {
    "cluster": {"world_size": 2, "device": "t4-16gb", "topology": "ring", "link": "pcie3-x16"},
    "workload": {
        "model": {"kind": "mlp", "widths": [8, 16, 4]},
        "dataset": {"kind": "regression", "num_samples": 64},
        "microbatch": 4,
        "steps": 3,
    },
}
SIZES = "cluster.world_size"


def scenario(sweep=None, **top):
    return checked({**TINY, "sweep": sweep or {}, **top}, Path())


def efficiencies(study):
    return [point.metrics["scaling_efficiency"] for point in study.points]


def test_without_a_sweep_there_is_one_point_with_everything():
    study = sweep(scenario())
    (point,) = study.points
    assert point.set == {}
    assert point.trace is not None
    assert len(point.replicas) == 2
    assert point.metrics["scaling_efficiency"] is None
    assert study.version == simdp.__version__
    assert study.scenario == scenario().resolved()


@pytest.mark.slow
def test_the_last_key_of_a_grid_runs_fastest():
    grid = {"workload.microbatch": [4, 8], SIZES: [2, 1, 4]}
    study = sweep(scenario(grid))
    assert [tuple(point.set.values()) for point in study.points] == [
        (4, 2),
        (4, 1),
        (4, 4),
        (8, 2),
        (8, 1),
        (8, 4),
    ]
    assert [point.world_size for point in study.points] == [2, 1, 4] * 2
    assert all(list(point.set) == list(grid) for point in study.points)
    assert study.scenario["sweep"] == grid


def test_each_point_is_what_its_scenario_alone_would_give():
    whole = scenario({SIZES: [1, 3], "strategy": [{"kind": "ddp", "overlap": False}, "ddp"]})
    for point, (chosen, alone) in zip(sweep(whole).points, whole.points(), strict=True):
        metrics = {**simdp.simulate(alone).metrics, "scaling_efficiency": None}
        assert point.set == chosen
        of_a_sweep = {"scaling_efficiency": None, "interval_s": None}
        assert {**point.metrics, **of_a_sweep} == metrics


def test_only_the_last_point_keeps_its_trace_and_none_its_weights():
    points = sweep(scenario({SIZES: [1, 2, 3]})).points
    assert [point.trace is None for point in points] == [True, True, False]
    assert [point.replicas for point in points] == [None] * 3


def test_a_sweep_over_one_value_is_still_a_sweep():
    (point,) = sweep(scenario({SIZES: [2]})).points
    assert point.set == {SIZES: 2}
    assert point.replicas is None
    assert point.metrics["scaling_efficiency"] == 1.0


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_give_the_same_bytes_as_one():
    whole = scenario({SIZES: [1, 2, 3], "workload.optimizer": [{"kind": "sgd", "lr": 0.1}, "adam"]})
    one, two = sweep(whole), sweep(whole, workers=2)
    assert two.to_json() == one.to_json()
    assert list(two.points[-1].trace.spans) == list(one.points[-1].trace.spans)
    assert two.points[0].trace is None


def test_there_is_no_less_than_one_process():
    with pytest.raises(ValueError, match="workers must be >= 1, got 0"):
        sweep(scenario(), workers=0)


# Scaling efficiency


def test_efficiency_is_throughput_per_rank_over_that_of_the_smallest():
    study = sweep(scenario({SIZES: [4, 1, 2]}))
    per_rank = [p.metrics["throughput_samples_per_s"] / p.world_size for p in study.points]
    assert efficiencies(study) == [value / per_rank[1] for value in per_rank]
    assert efficiencies(study)[1] == 1.0
    assert efficiencies(study)[0] < efficiencies(study)[2] < 1.0


def test_only_points_that_differ_in_the_world_size_alone_are_compared():
    links = [{"alpha": "1 us", "bandwidth": "10 GB/s"}, {"alpha": "90 us", "bandwidth": "1 GB/s"}]
    study = sweep(scenario({"cluster.link": links, SIZES: [2, 4]}))
    for fast_or_slow in (study.points[:2], study.points[2:]):
        two, four = (p.metrics["throughput_samples_per_s"] / p.world_size for p in fast_or_slow)
        assert [p.metrics["scaling_efficiency"] for p in fast_or_slow] == [1.0, four / two]


def test_a_sweep_over_something_else_has_no_efficiency():
    assert efficiencies(sweep(scenario({"workload.microbatch": [2, 4]}))) == [None, None]


# What fails


def failing_at(monkeypatch, sizes, error):
    simulate = many.simulate

    def fails(point, **options):
        if point.cluster.world_size in sizes:
            raise error
        return simulate(point, **options)

    monkeypatch.setattr(many, "simulate", fails)


def test_a_point_that_fails_is_a_row_with_its_reason(monkeypatch):
    whole = sweep(scenario({SIZES: [1, 2]}))
    failing_at(monkeypatch, [3], MemoryError())
    study = sweep(scenario({SIZES: [1, 3, 2]}))
    (failed,) = study.failed
    assert (failed.number, failed.set, failed.exit_status) == (1, {SIZES: 3}, 2)
    assert [point.metrics for point in study.points] == [point.metrics for point in whole.points]
    rows = json.loads(study.to_json())["points"]
    assert rows[1] == {"set": {SIZES: 3}, "metrics": None, "problems": failed.problems}
    assert study.in_order()[1] is failed
    assert repr(study) == "<Study scenario: 2 points and 1 that failed over cluster.world_size>"


def test_the_last_point_that_has_a_result_has_a_trace(monkeypatch):
    whole = sweep(scenario({SIZES: [1, 2]}))
    failing_at(monkeypatch, [3], ValueError("no\nway"))
    study = sweep(scenario({SIZES: [1, 2, 3]}))
    assert list(study.points[-1].trace.spans) == list(whole.points[-1].trace.spans)
    assert study.failed[0].problems == [r"ValueError: no\nway"]
    assert study.failed[0].exit_status == 1


def test_where_all_fail_there_is_no_study(monkeypatch):
    sizes = scenario({SIZES: [1, 2]})
    failing_at(monkeypatch, [1, 2], ScenarioError(["wrong."]))
    with pytest.raises(ScenarioError) as error:
        sweep(sizes)
    assert error.value.problems == ["wrong."]
    failing_at(monkeypatch, [1], ScenarioError(["wrong.", "also wrong."]))
    with pytest.raises(ScenarioError) as error:
        sweep(sizes)
    assert error.value.problems == ["wrong.", "with cluster.world_size=1: also wrong."]
    failing_at(monkeypatch, [1, 2], DeadlockError(["rank 0 waits"]))
    with pytest.raises(DeadlockError):
        sweep(sizes)


def test_a_study_with_failures_loads_again(monkeypatch, tmp_path):
    failing_at(monkeypatch, [1], MemoryError())
    study = sweep(scenario({SIZES: [1, 2]}))
    study.save(tmp_path / "result.json")
    again = simdp.Study.load(tmp_path / "result.json")
    assert again.to_json() == study.to_json()
    assert [point.set for point in again.failed] == [{SIZES: 1}]


# Progress


def test_progress_counts_points():
    seen = []
    sweep(scenario({SIZES: [1, 2]}), progress=lambda *call: seen.append(call))
    assert seen == [(0, 2), (1, 2), (2, 2)]


def test_progress_of_a_single_run_counts_steps():
    seen = []
    sweep(scenario(), progress=lambda *call: seen.append(call))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_watching_changes_nothing():
    whole = scenario({SIZES: [1, 2]})
    assert sweep(whole, progress=lambda *call: None).to_json() == sweep(whole).to_json()


# Intervals ----------------------------------------------------------------------------------------


def on_dgx(sweep=None, **top):
    raw = {
        "cluster": {"machine": "dgx-h100", "world_size": 8},
        "workload": {"model": {"kind": "mlp", "widths": [512, 512, 64]}, "microbatch": 64},
        "numerics": False,
        "sweep": sweep or {},
    }
    return checked({**raw, **top}, Path())


def test_points_of_a_sweep_have_the_interval_of_a_single_run():
    grid = {SIZES: [8, 16], "strategy": ["ddp", {"kind": "local_sgd", "local_steps": 4}]}
    study = sweep(on_dgx(grid))
    assert all(point.metrics["interval_s"] for point in study.points)
    for point in study.points:
        alone = on_dgx(cluster={"machine": "dgx-h100", SIZES[8:]: point.set[SIZES]})
        (single,) = sweep(
            checked({**alone.resolved(), "strategy": point.set["strategy"]}, Path())
        ).points
        assert point.metrics["interval_s"] == pytest.approx(single.metrics["interval_s"], rel=1e-9)


def test_the_interval_of_local_steps_holds_an_average():
    """The first three of eight steps have no communication, and leave nothing of it open."""
    strategy = {"kind": "local_sgd", "local_steps": 8}
    points = [{"microbatch": 64, "step_time": "10 us"}]
    workload = {**on_dgx().resolved()["workload"], "steps": 17}
    workload["compute"] = {"kind": "measured", "points": points}
    cluster = {"machine": "aws-p4d", "world_size": 16}
    (point,) = sweep(on_dgx(cluster=cluster, workload=workload, strategy=strategy)).points
    residual = read_machine("aws-p4d", Path()).calibration.residual
    step_time, (_, high) = point.metrics["step_time_s"], point.metrics["interval_s"]
    assert high > (1 + 2 * residual) * step_time


def test_a_large_sweep_leaves_out_intervals_that_take_runs_of_their_own(monkeypatch):
    """Links are played transfer by transfer, and so is every end of every constant's interval."""
    grid = {"collectives.cost": ["nccl", "links"], SIZES: [8, 4]}
    strategy = {"kind": "horovod"}
    few = [p.metrics["interval_s"] for p in sweep(on_dgx(grid, strategy=strategy)).points]
    assert all(few)
    monkeypatch.setattr("simdp.studies.sweep.MAX_INTERVALS", 3)
    many_points = sweep(on_dgx(grid, strategy=strategy)).points
    given = [p.metrics["interval_s"] is not None for p in many_points]
    assert given == [False, False, False, True]  # the last has its trace, and was played anyway
    assert all(p.metrics["interval_s"] for p in sweep(on_dgx({SIZES: [8, 16, 32, 64]})).points)
