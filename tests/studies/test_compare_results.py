"""What changed between two results: parts that sum, keys that explain, points that match."""

import dataclasses
import json

import pytest
from small_scenario import CLUSTER
from trace_maker import job

import simdp
from simdp.errors import ScenarioError
from simdp.scenario import checked
from simdp.studies.compare_results.matching import differing

pytestmark = pytest.mark.slow

WORKLOAD = {
    "model": {"kind": "mlp", "widths": [512, 2048, 2048, 10]},
    "dataset": {"kind": "blobs", "num_samples": 4096},
    "microbatch": 32,
    "steps": 4,
}


def scenario(tmp_path, cluster=None, workload=None, **top):
    raw = {
        "name": "box",
        "cluster": {**CLUSTER, **(cluster or {})},
        "workload": {**WORKLOAD, **(workload or {})},
        "numerics": False,
        **top,
    }
    return checked(raw, tmp_path)


@pytest.fixture
def saved(tmp_path):
    """Simulate a small scenario with some sections changed, and save its result in a folder."""

    def saved(name, *sections, **top):
        study = simdp.sweep(scenario(tmp_path, *sections, **top))
        folder = tmp_path / name
        folder.mkdir()
        study.save(folder / "result.json")
        return folder

    return saved


def by_key(point):
    return {one.key: one for one in point.keys}


def refused(a, b):
    with pytest.raises(ScenarioError) as caught:
        simdp.compare_results(a, b)
    (line,) = caught.value.problems
    return line


def test_parts_sum_to_the_step_on_both_sides(saved):
    a, b = saved("a"), saved("b", {"link": {"alpha": "5 us", "bandwidth": "5 GB/s"}})
    (point,) = simdp.compare_results(a, b).points
    assert sum(part.a for part in point.parts) == pytest.approx(point.a_s, rel=1e-9)
    assert sum(part.b for part in point.parts) == pytest.approx(point.b_s, rel=1e-9)
    assert sum(part.seconds for part in point.parts) == pytest.approx(point.seconds, rel=1e-9)


def test_the_only_key_that_differs_explains_all(saved):
    a, b = saved("a"), saved("b", {"link": {"alpha": "5 us", "bandwidth": "5 GB/s"}})
    (point,) = simdp.compare_results(a, b).points
    (one,) = point.keys
    assert (one.key, one.a, one.b) == ("cluster.link.bandwidth", "25 GB/s", "5 GB/s")
    assert one.seconds == point.seconds > 0
    assert point.parts[0].part == "exposed_comm_s"
    assert point.parts[0].keys == ("cluster.link.bandwidth",)
    assert point.rest_s == 0


def test_each_of_two_keys_has_its_own_share_by_simulation(saved, tmp_path):
    slow, large = {"link": {"alpha": "5 us", "bandwidth": "5 GB/s"}}, {"microbatch": 1024}
    (point,) = simdp.compare_results(saved("a"), saved("b", slow, large)).points
    step = {
        name: simdp.simulate(scenario(tmp_path, *sections)).metrics["step_time_s"]
        for name, sections in {
            "a": (),
            "slow": (slow,),
            "large": (None, large),
            "b": (slow, large),
        }.items()
    }
    link, batch = by_key(point)["cluster.link.bandwidth"], by_key(point)["workload.microbatch"]
    assert link.from_a == pytest.approx(step["slow"] - step["a"])
    assert link.to_b == pytest.approx(step["b"] - step["large"])
    assert batch.from_a == pytest.approx(step["large"] - step["a"])
    assert batch.to_b == pytest.approx(step["b"] - step["slow"])
    assert link.seconds + batch.seconds + point.rest_s == pytest.approx(point.seconds)
    parts = {part.part: part for part in point.parts}
    assert parts["compute_s"].keys == ("workload.microbatch",)
    assert parts["exposed_comm_s"].keys[0] == "cluster.link.bandwidth"


def test_keys_that_need_each_other_are_changed_together(saved):
    global_batch = {"microbatch": None, "global_batch": 64}
    slow = {"link": {"alpha": "5 us", "bandwidth": "5 GB/s"}}
    (point,) = simdp.compare_results(saved("a"), saved("b", slow, global_batch)).points
    batch = by_key(point)["workload.microbatch"]
    assert batch.together == ("workload.global_batch",)
    assert batch.seconds < 0
    assert by_key(point)["workload.global_batch"].seconds is None


def test_attribution_can_be_left_out(saved):
    slow, large = {"link": {"alpha": "5 us", "bandwidth": "5 GB/s"}}, {"microbatch": 1024}
    found = simdp.compare_results(saved("a"), saved("b", slow, large), attribution=False)
    assert {one.seconds for one in found.points[0].keys} == {None}
    assert found.points[0].rest_s is None


def test_points_of_sweeps_match_by_what_they_set(saved):
    a = saved("a", sweep={"cluster.world_size": [2, 4, 8]})
    b = saved("b", None, {"microbatch": 64}, sweep={"cluster.world_size": [8, 2, 16]})
    found = simdp.compare_results(a, b)
    assert [point.set for point in found.points] == [
        {"cluster.world_size": 2},
        {"cluster.world_size": 8},
    ]
    assert found.only_a == ({"cluster.world_size": 4},)
    assert found.only_b == ({"cluster.world_size": 16},)
    assert all(point.parts[0].keys == ("workload.microbatch",) for point in found.points)


def test_a_single_run_matches_the_point_of_a_sweep_that_it_is(saved):
    a = saved("a", sweep={"cluster.world_size": [2, 4]})
    (point,) = simdp.compare_results(a, saved("b")).points
    assert point.set == {"cluster.world_size": 4}
    assert point.seconds == 0
    assert point.keys == ()


def test_sweeps_without_a_common_point_are_refused(saved):
    a = saved("a", sweep={"cluster.world_size": [2, 4]})
    b = saved("b", sweep={"cluster.world_size": [8, 16]})
    line = refused(a, b)
    assert "have no point in common" in line
    assert "cluster.world_size=2; cluster.world_size=4" in line


def test_files_memory_and_python_are_the_same(saved, tmp_path):
    folder = saved("a")
    result = simdp.simulate(scenario(tmp_path))
    study = simdp.sweep(scenario(tmp_path))
    for other in (folder / "result.json", result, study):
        (point,) = simdp.compare_results(folder, other).points
        assert point.seconds == 0
        assert point.keys == ()


def test_sides_of_one_name_are_told_apart(tmp_path):
    result = simdp.simulate(scenario(tmp_path))
    found = simdp.compare_results(result, result)
    assert (found.a.name, found.b.name) == ("box (A)", "box (B)")


def test_traces_of_a_result_have_its_parts(tmp_path):
    cluster = {"stragglers": [{"kind": "slow_rank", "rank": 1, "factor": 1.5}]}
    result = simdp.simulate(scenario(tmp_path, cluster, {"microbatch": 4096}))
    result.save_traces(tmp_path / "traces")
    found = simdp.compare_results(result, tmp_path / "traces")
    (point,) = found.points
    assert found.b.source == "simdp"
    assert {part.part for part in point.parts} == {
        "compute_and_update_s",
        "exposed_comm_s",
        "wait_s",
        "other_s",
    }
    assert sum(part.b for part in point.parts) == pytest.approx(point.b_s)
    assert point.b_s == pytest.approx(point.a_s, rel=0.02)
    for part in point.parts:
        assert part.b == pytest.approx(part.a, abs=0.05 * point.a_s)


def test_a_trace_says_what_it_saw(tmp_path):
    slow = simdp.diagnose(job([[0, 0.2, 0, 0]] * 5), remedies=False)
    found = simdp.compare_results(simdp.simulate(scenario(tmp_path)), slow)
    (wait,) = (part for part in found.points[0].parts if part.part == "wait_s")
    assert wait.seconds > 0.1
    assert "straggler" in wait.evidence[0]
    assert {figure.name for figure in found.points[0].figures} >= {"ranks", "buckets"}


def test_a_sweep_is_held_against_a_trace_by_its_ranks(tmp_path):
    traces = simdp.diagnose(job([[0, 0.2, 0, 0]] * 5), remedies=False)
    study = simdp.sweep(scenario(tmp_path, sweep={"cluster.world_size": [2, 4]}))
    assert simdp.compare_results(study, traces).points[0].set == {"cluster.world_size": 4}
    study = simdp.sweep(scenario(tmp_path, sweep={"cluster.world_size": [2, 8]}))
    assert "has no point of 4 ranks" in refused(study, traces)
    study = simdp.sweep(scenario(tmp_path, sweep={"strategy.bucket_cap": ["1 MiB", "2 MiB"]}))
    assert "has 2 points of 4 ranks" in refused(study, traces)


def test_other_ranks_than_the_trace_has_are_told(tmp_path):
    traces = simdp.diagnose(job([[0, 0.2, 0, 0]] * 5), remedies=False)
    found = simdp.compare_results(simdp.simulate(scenario(tmp_path, {"world_size": 2})), traces)
    assert found.notes[0] == "box has 2 ranks, and traces 4."


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "there is no such file or folder; give a result.json"),
        ("{}", "holds nothing that is read here"),
        ('{"simdp": "0.1.0", "scenario": {}}', "is not a result.json of simdp"),
    ],
)
def test_what_is_no_result_is_refused(text, words, saved, tmp_path):
    path = tmp_path / "other.json"
    if text is not None:
        path.write_text(text)
    assert words in refused(saved("a"), path)


def test_a_trace_without_steps_is_refused(saved):
    found = simdp.diagnose(job([[0, 0.2, 0, 0]] * 5), remedies=False)
    assert "has no steps to compare" in refused(
        saved("a"), dataclasses.replace(found, step_time_s=None)
    )


def test_a_result_of_another_version_is_compared_as_far_as_it_goes(saved):
    a, b = saved("a"), saved("b", None, {"microbatch": 64})
    content = json.loads((b / "result.json").read_text())
    content["simdp"] = "0.0.1"
    content["scenario"]["cluster"]["gone"] = 1
    (b / "result.json").write_text(json.dumps(content))
    found = simdp.compare_results(a, b)
    assert found.notes[0].endswith(f"was written by simdp 0.0.1; this is {simdp.__version__}.")
    assert "does not load here" in found.notes[1]
    assert {one.key for one in found.points[0].keys} == {"cluster.gone", "workload.microbatch"}
    del content["points"][0]["metrics"]["wait_s"]
    (b / "result.json").write_text(json.dumps(content))
    assert "lacks wait_s, which simdp 0.0.1 wrote; run its scenario again" in refused(a, b)


def test_a_kind_a_model_and_a_machine_are_one_key_each(tmp_path):
    cluster = {"world_size": 16}
    plain = checked({"cluster": {**cluster, "machine": "dgx-a100"}, "workload": WORKLOAD}, tmp_path)
    other = checked(
        {
            "cluster": {**cluster, "machine": "dgx-h100"},
            "workload": {**WORKLOAD, "model": {"kind": "mlp", "widths": [512, 64, 64, 10]}},
            "strategy": "fsdp",
        },
        tmp_path,
    )
    found = {one.key: one for one in differing(plain.resolved(), other.resolved())}
    assert set(found) == {"cluster.machine", "strategy", "workload.model"}
    assert (found["cluster.machine"].a, found["cluster.machine"].b) == ("dgx-a100", "dgx-h100")
    assert found["strategy"].b["kind"] == "fsdp"
