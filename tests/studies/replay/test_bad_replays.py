"""What cannot be replayed is refused in a line, or said in one."""

from dataclasses import replace

import pytest
from for_each import for_each

from simdp.errors import ScenarioError
from simdp.studies.replay import read_job, replay_of, size_of
from simdp.traces import read_trace
from tests.kineto import document, event, kernel, launch, put, record
from tests.studies.replay.kineto_job import Job


def test_nothing_is_refused():
    with pytest.raises(ScenarioError, match="there is no trace; give one or more"):
        replay_of([])


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ScenarioError, match=r"none\.json: there is no such file"):
        read_job([tmp_path / "none.json"])


def test_ranks_of_different_jobs_are_refused(tmp_path):
    one = read_trace(Job(size=2).write(tmp_path / "a.json", 0))
    other = read_trace(Job(size=4).write(tmp_path / "b.json", 1))
    with pytest.raises(ScenarioError, match=r"jobs of 2 and 4 ranks; give those of one job"):
        replay_of([one, other])


def test_a_rank_that_is_there_twice_is_refused(tmp_path):
    one = read_trace(Job().write(tmp_path / "a.json", 0))
    other = read_trace(Job().write(tmp_path / "b.json", 0))
    with pytest.raises(ScenarioError, match=r"a\.json and .*b\.json: both are of rank 0"):
        replay_of([one, other])


def test_a_trace_without_work_is_refused(tmp_path):
    path = put(tmp_path / "t.json", document([record(10)]))
    with pytest.raises(ScenarioError, match=r"t\.json: "):
        replay_of([read_trace(path)])


def test_steps_without_kernels_are_refused(tmp_path):
    trace = read_trace(Job().write(tmp_path / "a.json", 0))
    lost = replace(trace, kernels=replace(trace.kernels, step=trace.kernels.step * 0 - 1))
    with pytest.raises(ScenarioError, match="no kernel was launched in any of its steps"):
        replay_of([lost])


def test_without_steps_and_collectives_it_says_what_counts(tmp_path):
    events = [launch(1, 0), kernel(1, 10, 20), launch(2, 40), kernel(2, 50, 30)]
    path = put(tmp_path / "t.json", document(events, world_size=1))
    found = replay_of([read_trace(path)])
    assert found.step_time_s == pytest.approx(70e-6)
    assert any("the whole trace counts as one step" in line for line in found.remarks)
    assert any("no collective tells how large gradients are" in line for line in found.remarks)
    again = found.simulate().metrics["step_time_s"]
    assert again == pytest.approx(70e-6, rel=0.01)


def test_gradients_may_be_told(tmp_path):
    events = [launch(1, 0), kernel(1, 10, 20), event("cpu_op", "aten::mm", 0, 5)]
    path = put(tmp_path / "t.json", document(events, world_size=1))
    found = replay_of([read_trace(path)], gradients=40e6)
    assert found.nbytes == 40e6
    metrics = found.simulate({"cluster.world_size": 2}).metrics
    assert sum(metrics["bucket_bytes"]) == 40e6


@for_each(
    ("text", "said"),
    [
        ("5", "--gradients: 5 has no unit"),
        ("5 GB/s", "--gradients: "),
        ("0 MB", "--gradients: 0 MB is nothing; write for example 102 MB"),
    ],
)
def test_a_size_that_is_none_is_refused(text, said):
    with pytest.raises(ScenarioError, match=said):
        size_of(text)


def test_an_unknown_device_or_machine_is_refused(tmp_path):
    trace = read_trace(Job().write(tmp_path / "a.json", 0))
    with pytest.raises(ScenarioError, match="unknown machine 'dgx-a10'"):
        replay_of([trace], machine="dgx-a10")
    with pytest.raises(ScenarioError, match="--device: unknown device 'a100'"):
        replay_of([trace], device="a100")


def test_a_device_that_nobody_knows_is_said(tmp_path):
    properties = [{"id": 0, "name": "abacus"}]
    path = Job().write(tmp_path / "a.json", 0, deviceProperties=properties)
    found = replay_of([read_trace(path)])
    assert any("abacus is not in the catalogue" in line for line in found.remarks)
    again = found.simulate().metrics["step_time_s"]
    assert again == pytest.approx(found.step_time_s, rel=0.01)


def test_the_device_is_named_as_in_the_catalogue_or_by_its_driver(tmp_path):
    job = Job()
    trace = read_trace(job.write(tmp_path / "a.json", 0))
    card = replace(trace, device_name="NVIDIA A100-PCIE-40GB")
    (remark,) = [line for line in replay_of([card]).remarks if "not in the catalogue" in line]
    assert "for --device: a100-pcie-80gb, a100-sxm4-40gb, a100-sxm4-80gb" in remark
    cluster = replay_of([card], device="NVIDIA A100-SXM4-40GB").scenario["cluster"]
    assert cluster["device"] == "a100-sxm4-40gb"
