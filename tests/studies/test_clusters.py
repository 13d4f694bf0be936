"""The cluster of a scenario by itself, at other world sizes."""

import json

import pytest
from for_each import for_each

import simdp
from simdp.errors import ScenarioError
from simdp.studies.collective import load_clusters, load_cost

CLUSTER = """\
cluster:
  world_size: 8
  devices_per_node: 4
  device: a100-sxm4-80gb
  link: nvlink3
  inter_node: {link: 100gbe}
  stragglers: [{kind: slow_rank, rank: 7, factor: 2}]
"""


@pytest.fixture
def load(tmp_path):
    def load(text, world_sizes=(), name="box.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return load_clusters(path, world_sizes)

    return load


@pytest.fixture
def refused(load, tmp_path):
    def refused(*arguments, **named):
        with pytest.raises(ScenarioError) as caught:
            load(*arguments, **named)
        return [line.removeprefix(f"{tmp_path}/") for line in caught.value.problems]

    return refused


def test_a_file_needs_nothing_but_a_cluster(load):
    name, (cluster,) = load(CLUSTER)
    assert (name, cluster.world_size, cluster.num_nodes) == ("box", 8, 2)


def test_the_scenarios_name_wins_over_the_files(load):
    assert load("name: mine\n" + CLUSTER)[0] == "mine"


def test_other_world_sizes_take_the_place_of_the_files(load):
    _, clusters = load(CLUSTER, [2, 16])
    assert [cluster.world_size for cluster in clusters] == [2, 16]


def test_stragglers_are_left_out_even_where_their_rank_is_missing(load):
    assert [cluster.stragglers for cluster in load(CLUSTER, [2])[1]] == [[]]


def test_a_saved_result_has_a_cluster(load):
    raw = {"scenario": {"cluster": {"world_size": 2, "device": "t4-16gb", "link": "pcie3-x16"}}}
    name, (cluster,) = load(json.dumps(raw), name="result.json")
    assert (name, cluster.world_size) == ("result", 2)


def test_a_loaded_cluster_is_the_scenarios(tmp_path):
    path = tmp_path / "whole.yaml"
    path.write_text(
        CLUSTER.replace("  stragglers", "  # stragglers")
        + "workload: {model: {kind: mlp, widths: [4, 3]}, dataset: blobs, microbatch: 4, steps: 1}"
    )
    assert load_clusters(path)[1] == [simdp.load_scenario(path).cluster]


def test_a_world_size_that_does_not_fit_is_named(refused):
    (line,) = refused(CLUSTER, [2, 6])
    assert line.startswith("box.yaml: with world_size 6: cluster: world_size 6 is neither one")


def test_every_problem_of_the_cluster_has_a_line(refused):
    broken = CLUSTER.replace("nvlink3", "nvlink99").replace("world_size: 8", "world_sze: 8")
    lines = refused(broken)
    assert lines[0].startswith("box.yaml: cluster: unknown key 'world_sze'")
    assert any(line.startswith("box.yaml: cluster.link: unknown link") for line in lines)


def test_an_unknown_section_is_refused(refused):
    (line,) = refused(CLUSTER + "clutser: {}\n")
    assert line.startswith("box.yaml: unknown key 'clutser'. Did you mean ")


@for_each("text", ["1\n", "workload: {}\n", "cluster: 3\n", ""])
def test_a_file_without_a_cluster_is_refused(text, refused):
    assert refused(text) == ["box.yaml: has no cluster; it must be a mapping with cluster: ..."]


def test_a_word_that_is_no_file_is_told_what_is_wanted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from pathlib import Path

    with pytest.raises(ScenarioError) as caught:
        load_clusters(Path("dgx-a900"))
    (line,) = caught.value.problems
    assert line.startswith("--cluster dgx-a900: there is no such file, scenario or machine. Did ")
    assert " mean 'dgx-a100'? Known: " in line
    assert line.endswith(" more: simdp list machines.")


def test_a_machine_is_one_node_of_it_unless_more_is_asked_for(tmp_path):
    from pathlib import Path

    name, (one,) = load_clusters(Path("dgx-2"))
    assert (name, one.world_size, one.num_nodes) == ("dgx-2", 16, 1)
    _, (two,) = load_clusters(Path("dgx-2"), [32])
    assert (two.world_size, two.num_nodes) == (32, 2)


def test_a_machines_file_is_one_node_of_it_as_its_name_is(tmp_path):
    from pathlib import Path

    from simdp.cluster.hardware import MACHINES

    path = tmp_path / "ours.yaml"
    path.write_text((MACHINES.folder / "hkbu-10gbe.yaml").read_text())
    for world_sizes in ([], [8]):
        name, (ours,) = load_clusters(path, world_sizes)
        _, (known,) = load_clusters(Path("hkbu-10gbe"), world_sizes)
        assert (name, ours) == ("ours", known.model_copy(update={"machine": "ours.yaml"}))
    assert load_cost(path) == load_cost(Path("hkbu-10gbe"))


def test_the_cost_is_that_of_the_scenario_or_the_machine(tmp_path):
    from pathlib import Path

    path = tmp_path / "box.yaml"
    path.write_text("cluster: {machine: dgx-1}\ncollectives: {cost: {kind: nccl, launch: 7 us}}\n")
    assert load_cost(path).launch == 7e-6
    assert load_cost(Path("dgx-1")).kind == "nccl"
    path.write_text("cluster: {}\ncollectives: {cost: nickel}\n")
    with pytest.raises(ScenarioError, match=r"box\.yaml: collectives\.cost: unknown cost 'nickel'"):
        load_cost(path)
