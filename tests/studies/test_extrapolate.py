"""A recorded step of one GPU on many: points are those of a run, scaled to other devices."""

import pytest
from for_each import for_each

from simdp.errors import ScenarioError
from simdp.results.metrics import Metrics, limit_of
from simdp.scenario import load_scenario
from simdp.studies.executor import executor_for
from simdp.studies.extrapolate import (
    ExtrapolationRequest,
    extrapolate,
    parse_gpus,
    parse_machines,
    parse_step_time,
    parse_strategies,
    recording_of_scenario,
    recording_of_traces,
)
from simdp.studies.intervals import is_scaled
from simdp.studies.sweep import sweep
from tests.studies.replay.kineto_job import Job

JOB = """
cluster: {machine: dgx-a100, world_size: 1, stragglers: [{kind: jitter, sigma: 0.01}]}
workload:
  model: resnet18
  microbatch: 32
  compute: {kind: measured, points: [{microbatch: 32, step_time: 20 ms}]}
  steps: 3
measured: {source: none, points: []}
"""


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB.replace("measured: {source: none, points: []}\n", ""))
    return path


def points_of(recording, **request):
    with executor_for(1, None) as executor:
        return extrapolate(recording, ExtrapolationRequest(**request), executor=executor)


def test_on_its_own_machine_a_point_is_the_scenarios_own_run(job):
    recording = recording_of_scenario(job)
    assert recording.step.step_time_s == pytest.approx(20e-3, rel=0.01)
    made = points_of(recording, gpus=[8])
    (point,) = made.found.points
    whole = load_scenario(job, {"cluster.world_size": 8, "numerics": False})
    metrics = sweep(whole).points[0].metrics
    assert point.step_time_s == metrics["step_time_s"]
    assert (point.low_s, point.high_s) == pytest.approx(tuple(metrics["interval_s"]))
    assert point.throughput_samples_per_s == metrics["throughput_samples_per_s"]
    assert (point.fits, point.scaled, point.limit) == (True, False, "compute")
    assert point.efficiency == pytest.approx(point.speedup / 8)
    assert 0.8 < point.efficiency <= 1.0
    assert sum(point.shares.values()) == pytest.approx(point.step_time_s)


def test_another_device_scales_measured_steps_and_widens_the_interval(job):
    made = points_of(recording_of_scenario(job), gpus=[8], machines=["dgx-a100", "dgx-h100"])
    same, other = made.found.points
    assert other.scaled
    assert other.shares["compute"] < 0.8 * same.shares["compute"]
    assert other.high_s / other.low_s > 1.5 * same.high_s / same.low_s
    assert any("scaled from a100-sxm4-80gb to h100-sxm5-80gb" in one for one in made.found.remarks)
    assert made.found.best == {"dgx-a100": 0, "dgx-h100": 1}
    alone = "cluster.stragglers: of dgx-a100 alone; other machines have their own"
    assert alone in made.found.remarks
    point = made.scenarios["dgx-h100.yaml"]["workload"]["compute"]["points"][0]
    assert (point["device"], point["measured_on"]) == ("h100-sxm5-80gb", "a100-sxm4-80gb")


def test_scenarios_of_machines_run_as_sweeps(job, tmp_path):
    from simdp.files import format_yaml

    made = points_of(recording_of_scenario(job), gpus=[4, 8], machines=["dgx-h100"])
    path = tmp_path / "out.yaml"
    path.write_text(format_yaml(made.scenarios["dgx-h100.yaml"]))
    study = sweep(load_scenario(path))
    times = [point.metrics["step_time_s"] for point in study.points]
    assert times == [point.step_time_s for point in made.found.points]
    assert is_scaled(load_scenario(path).points()[0][1])


def test_points_that_cannot_run_keep_their_reason(job):
    made = points_of(recording_of_scenario(job), gpus=[4, 12], machines=["dgx-a100"])
    first, second = made.found.points
    assert first.problem is None
    assert "12" in second.problem
    assert [point.set for point in made.study.points] == [{"cluster.world_size": 4}]
    assert [(one.number, one.problems) for one in made.study.failed] == [(1, [second.problem])]
    with pytest.raises(ScenarioError, match="12"):
        points_of(recording_of_scenario(job), gpus=[12], machines=["dgx-a100"])


def test_a_step_time_replaces_compute(job):
    recording = recording_of_scenario(job, step_time=40e-3, device="t4-16gb")
    assert recording.step.device == "t4-16gb"
    assert recording.step.step_time_s == pytest.approx(40e-3, rel=0.01)
    (point,) = points_of(recording, gpus=[8]).found.points
    assert point.scaled


def test_what_does_not_fit_has_a_remark_and_is_not_the_best(job):
    recording = recording_of_scenario(job, {"workload.microbatch": 4096})
    made = points_of(recording, gpus=[8], machines=["hkbu-10gbe"])
    (point,) = made.found.points
    assert (point.fits, point.limit, made.found.best) == (False, "memory", {})
    assert any(
        line.startswith("8 GPUs of hkbu-10gbe, ddp: does not fit: a rank needs ")
        for line in made.found.remarks
    )


def test_a_trace_keeps_its_measured_step_and_its_strategy(tmp_path):
    trace = Job().write(tmp_path / "rank0.json")
    recording = recording_of_traces([trace], tmp_path, device="a100-sxm4-40gb", microbatch=4)
    assert (recording.step.gpus, recording.step.kind) == (2, "trace")
    made = points_of(recording, gpus=[8], machines=["aws-p4d", "dgx-h100"])
    same, other = made.found.points
    assert (same.strategy, same.scaled, other.scaled) == ("ddp", False, True)
    assert same.fits is None
    assert same.speedup == pytest.approx(
        same.throughput_samples_per_s / recording.step.throughput_samples_per_s
    )
    cluster = made.scenarios["aws-p4d.yaml"]["cluster"]
    assert cluster["overheads"] == {"hook": "0 s", "launch": "0 s"}
    assert any("activations are in no trace" in line for line in made.found.remarks)
    assert recording.default_machine == "aws-p4d"


def test_a_trace_of_an_unknown_device_is_refused(tmp_path):
    properties = [{"id": 0, "name": "NVIDIA A101"}]
    trace = Job().write(tmp_path / "rank0.json", deviceProperties=properties)
    with pytest.raises(ScenarioError, match="A101, is not in the catalogue; give --device"):
        recording_of_traces([trace], tmp_path)


def test_a_trace_without_collectives_needs_the_size_of_its_gradients(tmp_path):
    job = Job()
    job.all_reduce = lambda *arguments: None
    trace = job.write(tmp_path / "rank0.json")
    with pytest.raises(ScenarioError, match="no collective shows the size of gradients; give"):
        recording_of_traces([trace], tmp_path)
    recording = recording_of_traces([trace], tmp_path, gradients=2.4e6)
    (point,) = points_of(recording, gpus=[8], machines=["hkbu-10gbe"]).found.points
    assert point.shares["exposed_comm"] > 0


def test_models_without_layers_are_not_scaled(tmp_path):
    path = tmp_path / "job.yaml"
    model = "{kind: parameters, num_params: 1_000_000}"
    path.write_text(JOB.split("measured: {s")[0].replace("resnet18", model))
    made = points_of(recording_of_scenario(path), gpus=[8], machines=["dgx-a100", "dgx-h100"])
    assert made.found.points[0].problem is None
    assert "has no layers, so that measured steps of one device" in made.found.points[1].problem


@for_each(
    "call",
    [
        (parse_gpus, "8:", "--gpus 8:: is not"),
        (parse_machines, "dgx-a100,dgx-a100", "--on dgx-a100,dgx-a100: has a machine twice"),
        (parse_machines, "dgx-a10", "--on: unknown machine 'dgx-a10'"),
        (parse_strategies, "ddp,ddp", "--strategy ddp,ddp: has a strategy twice"),
        (parse_strategies, "dpd", "--strategy: unknown strategy 'dpd'"),
        (parse_step_time, "93", "--step-time: 93 has no unit"),
        (parse_step_time, "0 s", "--step-time: 0 s is no time"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(call):
    parse, text, said = call
    with pytest.raises(ScenarioError) as error:
        parse(text)
    assert error.value.problems[0].startswith(said)


def test_gpus_double_or_are_listed():
    assert parse_gpus("8:64") == [8, 16, 32, 64]
    assert parse_gpus("8,24") == [8, 24]


@for_each(
    "case",
    [
        ({"workload.grad_accum": 2}, {"step_time": 1.0}, "--step-time: is of one micro-batch"),
        ({"workload.compute": "roofline"}, {"device": "t4-16gb"}, "--device: the recording has no"),
    ],
    ids=str,
)
def test_a_recording_must_have_what_options_are_of(case, job):
    overrides, options, said = case
    with pytest.raises(ScenarioError) as error:
        recording_of_scenario(job, overrides, **options)
    assert said in error.value.problems[0]


def test_a_scenario_without_a_machine_needs_one(tmp_path):
    path = tmp_path / "job.yaml"
    cluster = "{device: a100-sxm4-80gb, world_size: 1, topology: ring, link: nvlink3}"
    text = JOB.split("measured: {s")[0].split("workload")[1]
    path.write_text(f"cluster: {cluster}\nworkload{text}".replace("compute: {", "compute: {"))
    assert recording_of_scenario(path).default_machine == "dgx-a100"
    free = recording_of_scenario(path, {"workload.compute": "roofline"})
    with pytest.raises(ScenarioError, match="--on: the recording names no machine"):
        _ = free.default_machine


def test_single_becomes_ddp_on_several(job):
    recording = recording_of_scenario(job, {"strategy": "single"})
    made = points_of(recording, gpus=[2])
    assert made.found.points[0].strategy == "ddp"
    assert "strategy: ddp, since single trains on one GPU" in made.found.remarks


def test_the_limit_is_the_largest_part_or_memory():
    parts = Metrics(compute_s=1.0, update_s=1.0, exposed_comm_s=3.0, wait_s=0.5, other_s=1.0)
    assert limit_of(parts, 0.5) == "communication"
    assert limit_of(parts, 0.95) == "memory"
