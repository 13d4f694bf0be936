"""Which scenarios are validated."""

from pathlib import Path

import pytest
from small_scenario import MINIMAL

from simdp.errors import ScenarioError
from simdp.scenario import load_scenario
from simdp.studies.validate import jobs, validate
from simdp.studies.validate.jobs import cluster_name, load_measured, load_valid
from simdp.studies.validate.leave_out import leave_out


def test_a_folder_gives_every_scenario_below_it_that_has_measurements(write, tmp_path):
    write("b.yaml")
    write("a/c.yaml")
    write("plain.yaml", measured=False)
    found = load_measured([tmp_path])
    assert [path.name for path in found] == ["c.yaml", "b.yaml"]


def test_a_file_that_is_given_twice_counts_once(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("a.yaml")
    assert list(load_measured([Path("a.yaml"), tmp_path])) == [Path("a.yaml")]


def test_a_file_without_measurements_is_refused(write):
    path = write("plain.yaml", measured=False)
    with pytest.raises(ScenarioError) as caught:
        load_measured([path])
    assert caught.value.problems == [
        f"{path}: has no measured: key; add measured: {{source: ..., points: [...]}}, with the "
        "measurements."
    ]


def test_a_folder_with_more_files_than_are_listed_is_refused(write, tmp_path, monkeypatch):
    write("box.yaml")
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).touch()
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "around").symlink_to(tmp_path)  # links are not followed
    monkeypatch.setattr(jobs, "MAX_WALKED", 5)
    assert [path.name for path in load_measured([tmp_path])] == ["box.yaml"]
    monkeypatch.setattr(jobs, "MAX_WALKED", 4)
    with pytest.raises(ScenarioError) as caught:
        load_measured([tmp_path])
    assert caught.value.problems == [
        f"{tmp_path}: holds more than 4 files and folders; give the folder of the scenarios."
    ]


def test_a_folder_without_measurements_is_refused(write, tmp_path):
    write("plain.yaml", measured=False)
    with pytest.raises(ScenarioError) as caught:
        load_measured([tmp_path])
    assert caught.value.problems == [f"{tmp_path}: holds no scenario with measured: ... in it."]


def test_two_scenarios_of_one_name_are_refused(write, tmp_path):
    first, second = write("a/box.yaml"), write("b/box.yaml")
    with pytest.raises(ScenarioError) as caught:
        load_measured([tmp_path])
    assert caught.value.problems == [
        f"{second}: has the name of {first}, box; add another name: ..."
    ]


def test_all_files_are_looked_at_before_any_is_refused(write, tmp_path):
    for name in ("a.yaml", "b.yaml"):
        write(name, strategy="ddq")
    with pytest.raises(ScenarioError) as caught:
        load_measured([tmp_path])
    assert len(caught.value.problems) == 2


def test_a_point_belongs_to_its_machine_else_to_its_scenario(write):
    plain = load_scenario(write("plain.yaml"))
    assert cluster_name("plain", plain) == "plain"
    dgx = load_scenario(write("dgx.yaml"), {"cluster.machine": "dgx-1"})
    assert cluster_name("dgx", dgx) == "dgx-1"


def test_wrong_files_of_a_folder_are_listed_and_the_others_are_loaded(write, tmp_path):
    write("a.yaml")
    write("b.yaml", strategy="ddq", cluster={**MINIMAL["cluster"], "world_size": 0})
    (tmp_path / "c.yaml").write_text(f"name: a\n{(tmp_path / 'a.yaml').read_text()}")
    (tmp_path / "d.yaml").write_text("measured: [")
    (tmp_path / "e.yaml").write_bytes(b"\xff\xfe")
    found = load_valid([tmp_path])
    assert [path.name for path in found.scenarios] == ["a.yaml"]
    wrong = {Path(one.file).name: one.reason for one in found.wrong}
    assert list(wrong) == ["e.yaml", "b.yaml", "c.yaml", "d.yaml"]
    assert wrong["b.yaml"].endswith("(and 1 more problem)")
    assert wrong["c.yaml"] == f"has the name of {tmp_path / 'a.yaml'}, a; add another name: ..."
    assert wrong["d.yaml"].startswith("line 1: is not valid YAML")
    assert wrong["e.yaml"].startswith("is not a text file")
    assert all(one.point is None for one in found.wrong)


def test_a_file_that_is_named_must_be_right_as_a_whole_and_a_folder_must_hold_one(write, tmp_path):
    write("a.yaml")
    bad, poor = write("b.yaml", strategy="ddq"), write("c.yaml", measured={"points": [{}, {}]})
    for path in (bad, poor):
        with pytest.raises(ScenarioError) as caught:
            load_valid([tmp_path, path])
        assert caught.value.problems[0].startswith(f"{path}: ")
        assert len(caught.value.problems) > 1  # those of the folder follow
    (tmp_path / "a.yaml").unlink()
    with pytest.raises(ScenarioError) as caught:
        load_valid([tmp_path])
    assert [line.split(":")[0] for line in caught.value.problems] == [str(bad), str(poor)]


def test_wrong_points_keep_their_numbers_of_the_file(write, tmp_path):
    points = [
        {"step_tme": "9 us"},
        {"set": {"cluster.world_size": 1}, "step_time": "9 us"},
        {"set": {"cluster.world_sze": 1}, "step_time": "9 us"},
        {"set": {"cluster.world_size": 1}, "step_time": "90 us"},
        {"set": {"cluster.world_size": 2}, "step_time": "90 us"},
    ]
    tables = [{"collective": "all_reduc", "times": {"1 MiB": "70 us"}}]
    tables += [
        {"collective": name, "times": {"1 MiB": "9 us"}} for name in ("sendrecv", "broadcast")
    ]
    path = write("a.yaml", measured={"points": points, "collectives": tables})
    found = validate([path])
    assert [point.set["cluster.world_size"] for point in found.points] == [1, 2]
    assert {row.collective for row in found.rows} == {"broadcast"}
    assert [one.point for one in found.not_compared] == [
        "points.0",
        "collectives.0",
        "points.2",
        "points.3",
        "collectives.1",
    ]
    assert found.not_compared[3].reason.startswith("contradicts points.1: ")
    assert "links has no algorithm for sendrecv" in found.not_compared[4].line
    left_out = leave_out([path], "cluster")
    assert set(left_out.whole.not_compared) == set(found.not_compared)
    assert left_out.validation.not_compared == left_out.whole.not_compared


def test_nothing_to_compare_is_an_error(write):
    tables = [{"collective": "sendrecv", "times": {"1 MiB": "9 us"}}]
    path = write("a.yaml", measured={"points": [], "collectives": tables})
    for study in (validate, lambda paths: leave_out(paths, "cluster")):
        with pytest.raises(ScenarioError) as caught:
            study([path])
        (line,) = caught.value.problems
        assert line.startswith(f"{path}: measured.collectives.0: collectives.cost: links has no")
