"""What cannot be replayed is refused or named in a remark; links are fitted."""

from dataclasses import replace

import pytest
from for_each import for_each

from simdp.errors import ScenarioError
from simdp.studies.replay.scenario import fitted, read_job, replay_of, size_of
from simdp.studies.replay.timeline import StepCollective
from simdp.traces import read_trace
from tests.kineto import document, event, kernel, launch, put, record
from tests.studies.replay.kineto_job import Job


def test_nothing_is_refused():
    with pytest.raises(ScenarioError, match="traces: none given; give those of one job"):
        replay_of([])


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ScenarioError, match=r"none\.json: there is no such file"):
        read_job([tmp_path / "none.json"])


def test_ranks_of_different_jobs_are_refused(tmp_path):
    one = read_trace(Job(size=2).write(tmp_path / "a.json", 0))
    other = read_trace(Job(size=4).write(tmp_path / "b.json", 1))
    words = r"b\.json: is of a job of 4 ranks, but .*a\.json of one of 2; give the traces"
    with pytest.raises(ScenarioError, match=words):
        replay_of([one, other])


def test_a_rank_that_is_there_twice_is_refused(tmp_path):
    one = read_trace(Job().write(tmp_path / "a.json", 0))
    other = read_trace(Job().write(tmp_path / "b.json", 0))
    with pytest.raises(ScenarioError, match=r"b\.json: is of rank 0, as .*a\.json is; give"):
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


def sent(name, nbytes, seconds, n=4):
    return StepCollective(name, name, nbytes, "float32", "0", n, 0, False, seconds, 0.0, seconds)


def ring(nbytes, n, alpha=20e-6, bandwidth=10e9):
    return 2 * (n - 1) * (alpha + nbytes / (n * bandwidth))


def test_a_latency_and_a_bandwidth_come_back():
    found = fitted([sent("all_reduce", s, ring(s, 4)) for s in (1e4, 1e6, 3e7)])
    assert found.alpha == pytest.approx(20e-6, rel=1e-9)
    assert found.bandwidth == pytest.approx(10e9, rel=1e-9)
    assert found.error == pytest.approx(0, abs=1e-9)
    assert (found.num_sizes, found.smallest, found.largest) == (3, 1e4, 3e7)


def test_gathers_and_scatters_go_half_as_far():
    each = [sent("all_gather", s, ring(s, 4) / 2) for s in (1e5, 1e7)]
    each += [sent("reduce_scatter", 1e6, ring(1e6, 4) / 2)]
    found = fitted(each)
    assert found.bandwidth == pytest.approx(10e9, rel=1e-9)


def test_no_figure_is_below_zero():
    """A larger transfer that took less has waited less: then one of the two explains all."""
    found = fitted([sent("all_reduce", 1e5, 2e-3), sent("all_reduce", 1e6, 1e-3)])
    assert found.alpha >= 0
    assert found.bandwidth > 0
    assert found.error > 0.1


def test_one_size_alone_is_all_latency_or_all_bandwidth():
    found = fitted([sent("all_reduce", 1e6, ring(1e6, 2, alpha=0.0), n=2)])
    assert ring(1e6, 2, found.alpha, found.bandwidth) == pytest.approx(1e-4, rel=1e-9)


def test_what_has_no_size_or_no_partner_tells_nothing():
    nothing = [sent("all_reduce", float("nan"), 1e-3), sent("all_reduce", 1e6, 1e-3, n=1)]
    assert fitted(nothing) is None
    assert fitted([]) is None
