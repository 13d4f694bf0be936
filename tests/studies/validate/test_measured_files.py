"""Which scenarios are validated."""

from pathlib import Path

import pytest

from simdp.errors import ScenarioError
from simdp.scenario import load_scenario
from simdp.studies.validate.jobs import cluster_name, load_measured


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
