"""Scenarios by name: in any folder, and behind what lies there."""

import shutil
from pathlib import Path

import pytest

import simdp
from simdp.cli import run_command_line
from simdp.errors import ScenarioError
from simdp.scenario import shipped

ROOT = Path(__file__).parents[2]
SCENARIOS = ROOT / "scenarios"
FAST = ["--set", "numerics=false", "--no-plots", "--quiet"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    shipped.folder.cache_clear()


def refused(name, *options, **told):
    with pytest.raises(ScenarioError) as caught:
        shipped.find(Path(name), *options, **told)
    (line,) = caught.value.problems
    return line


def test_every_scenario_has_a_name_and_a_question():
    assert shipped.names() == tuple(sorted(path.stem for path in SCENARIOS.glob("*.yaml")))
    for name in shipped.names():
        assert shipped.find(Path(name)).samefile(SCENARIOS / f"{name}.yaml")
        assert "?" in shipped.question(name)
        assert "yaml-language-server" not in shipped.question(name)


def test_those_in_folders_are_named_with_their_folder():
    name = "validation/hkbu/hkbu-10gbe_resnet50"
    assert shipped.find(Path(name)).samefile(SCENARIOS / f"{name}.yaml")
    assert shipped.find(Path("validation/hkbu"), folders=True).samefile(
        SCENARIOS / "validation/hkbu"
    )
    assert shipped.find(Path("overlap"), shipped.PROGRAM).samefile(SCENARIOS / "overlap.py")


def test_what_lies_in_the_current_folder_wins():
    for there in ("scaling.yaml", "scaling"):  # the second one as well, beside the first
        Path(there).write_text("mine")
        assert shipped.find(Path("scaling")) == Path(there)
    Path("straggler").mkdir()  # a folder is no scenario
    assert shipped.find(Path("straggler")).samefile(SCENARIOS / "straggler.yaml")
    assert shipped.find(Path("straggler"), folders=True) == Path("straggler")


def test_a_name_that_is_none_is_refused_with_those_that_there_are():
    line = refused("8gpu_rin")
    hint = ": there is no such file or scenario. Did you mean '8gpu_ring'? Known: 16384_gpus, "
    assert line.startswith(f"8gpu_rin{hint}")
    assert line.endswith(" more: simdp list scenarios.")
    assert refused("8gpu_rin.yaml").startswith(f"8gpu_rin.yaml{hint}")
    assert refused("qqq").startswith("qqq: there is no such file or scenario; known: 16384_gpus, ")
    assert refused("overla", shipped.PROGRAM) == (
        "overla: there is no such file or program. Did you mean 'overlap'? Known: all_reduce, "
        "overlap."
    )


def test_the_path_of_a_checkout_leads_to_the_name():
    assert refused("scenarios/scaling.yaml") == (
        "scenarios/scaling.yaml: there is no such file; simdp brings one by the name of scaling."
    )


def test_other_paths_are_left_to_who_opens_them():
    for path in ("none.yaml", "../8gpu_ring", "/8gpu_ring", "some/where", "a" * 300 + ".yaml"):
        assert shipped.find(Path(path)) == Path(path)
    Path("empty").mkdir()
    assert shipped.find(Path("empty")) == Path("empty")


def test_an_installed_package_has_a_copy_of_its_own(here, monkeypatch):
    package = here / "site-packages" / "simdp"
    shutil.copytree(SCENARIOS, package / "scenarios", ignore=shutil.ignore_patterns("validation"))
    shipped.folder.cache_clear()
    monkeypatch.setattr(shipped, "PLACES", (package / "scenarios", SCENARIOS))
    assert shipped.find(Path("seed_mlp")).is_relative_to(package)
    assert run_command_line(["run", "seed_mlp", *FAST]) == 0  # its data lies beside it
    (saved,) = Path("runs").rglob("result.json")
    assert saved == Path("runs/seed_mlp/result.json")
    assert run_command_line(["check", str(saved)]) == 0  # its paths lead to the package


def test_python_knows_the_names_as_well():
    assert simdp.load_scenario("8gpu_ring").name == "8gpu_ring"


@pytest.mark.slow
@pytest.mark.long
def test_every_command_that_takes_a_scenario_takes_a_name(capsys):
    small = ["--no-plots", "--quiet"]
    for command in (
        ["check", "8gpu_ring", "seed_mlp", "msccl_all_pairs", "validation/sia/sia-rtx_resnet50"],
        ["run", "profile_step", *small],
        ["compare", "two_nodes", "--over", "strategy=ddp,zero1", "--set", "sweep=null", *small],
        ["collective", "all_reduce", "--cluster", "two_nodes", "--sizes", "1KiB", *small],
        ["exec", "all_reduce", "--cluster", "8gpu_ring", *small],
        ["validate", "validation/sia/sia-rtx_resnet50", *small],
    ):
        assert run_command_line(command) == 0, capsys.readouterr().err
    made = {path.parent.name for path in Path("runs").glob("*/*.json")}
    assert made == {"profile_step", "two_nodes-compare", "collective", "all_reduce", "validation"}


def test_an_unknown_cluster_may_have_been_meant_as_a_scenario(capsys):
    assert run_command_line(["collective", "all_reduce", "--cluster", "two_node"]) == 2
    assert capsys.readouterr().err.startswith(
        "--cluster two_node: there is no such file, scenario or machine. Did you mean 'two_nodes'?"
    )
