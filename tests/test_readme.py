"""The README's promises: its commands, its reference and its pictures."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

import simdp
from simdp.cli import run_command_line
from simdp.files import parse_yaml
from simdp.results.metrics import ORDER
from simdp.scenario import checked

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def section(title):
    (text,) = re.findall(rf"^##+ {title}\n(.*?)(?=^##|\Z)", README, re.DOTALL | re.MULTILINE)
    return text


def test_it_opens_with_two_single_line_commands():
    first = blocks("sh")[0].strip().splitlines()
    assert len(first) == 2
    assert first[0].endswith("python3 -m simdp run scenarios/8gpu_ring.yaml")
    assert first[1].endswith("python3 -m pytest")


COMMANDS = [
    line.split("  #")[0].strip()
    for line in "".join(blocks("sh")).splitlines()
    if line.startswith("python -m simdp")
]


LONG = ("validate", "calibrate ddp", "gallery")
"""Commands of ten seconds and more, which .ci/run runs."""


@pytest.mark.parametrize("command", [c for c in COMMANDS if not any(word in c for word in LONG)])
def test_every_other_command_works(command, tmp_path, monkeypatch, capsys):
    for name in ("scenarios", "tests", "README.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    assert run_command_line(shlex.split(command)[3:]) == 0
    assert capsys.readouterr().out


def test_the_scenario_reference_is_a_valid_scenario(tmp_path):
    import numpy as np

    (reference,) = (block for block in blocks("yaml") if "\ncluster:" in block)
    raw = parse_yaml(reference, "README.md")
    widths = raw["workload"]["model"]["widths"]
    weights = {}
    for i, (before, after) in enumerate(pairwise(widths)):
        weights[f"layers.{i}.weight"] = np.zeros((after, before))
        weights[f"layers.{i}.bias"] = np.zeros(after)
    np.savez(tmp_path / "weights.npz", **weights)
    assert len(checked(raw, tmp_path).points()) == 5


def test_the_rank_program_of_the_example_runs():
    (example,) = (block for block in blocks("python") if "import simdp.distributed" in block)
    names = {}
    exec(example.replace("dist.launch(", "values = dist.launch("), names)
    assert [(tensor.tolist(), clock >= 1e-3) for tensor, clock in names["values"]] == [
        ([16, 20], True)
    ] * 4


def test_the_python_example_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    (example,) = (block for block in blocks("python") if "import simdp\n" in block)
    names = {}
    exec(example, names)
    assert names["result"].metrics["step_time_s"] > 0
    assert len(names["study"].points) == 7


def test_every_scenario_is_listed_with_its_question():
    listed = re.findall(r"^\| `(\w+)` \|", section("Scenarios that teach"), re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in (ROOT / "scenarios").glob("*.yaml"))


def test_every_picture_is_there_and_drawn_by_the_gallery():
    from simdp.studies.gallery import pictures

    shown = re.findall(r"!\[[^]]+\]\(plots/(\w+)\.png\)", README)
    drawn = set(pictures())
    assert shown
    assert set(shown) <= drawn
    assert {path.stem for path in (ROOT / "plots").glob("*.png")} == drawn


def test_the_version_is_the_packages():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == simdp.__version__


def test_every_key_of_the_specs_stands_in_the_reference():
    from simdp.cluster import Cluster, InterNode
    from simdp.scenario import Scenario
    from simdp.scenario.neighbours import Neighbour
    from simdp.strategies.ddp import DDP
    from simdp.workload import Workload

    for spec in (Scenario, Cluster, InterNode, Neighbour, Workload, DDP):
        for key in spec.model_fields:
            assert re.search(rf"\b{key}\b", README), f"{spec.__name__}.{key} is not in the README"


def test_the_table_of_algorithms_is_that_of_the_families():
    from simdp.collectives import FAMILIES

    head, _, *rows = re.findall(r"^\| .* \|$|^\|--.*$", section("Collectives"), re.MULTILINE)
    names = [cell.strip() for cell in head.split("|")[2:-2]]
    listed = {name: set() for name in FAMILIES}
    for row in rows:
        kind, *cells, others = (cell.strip(" `") for cell in row.split("|")[1:-1])
        for name in [name for name, cell in zip(names, cells, strict=True) if cell]:
            listed[name].add(kind)
        for name in filter(None, others.split(", ")):
            listed[name].add(kind)
    assert listed == {name: set(table) for name, table in FAMILIES.items()}


def test_every_option_of_algorithms_and_topologies_stands_in_its_section():
    from simdp.cluster.topologies import TOPOLOGIES
    from simdp.collectives import FAMILIES

    for text, tables in (
        (section("Topologies"), [TOPOLOGIES]),
        (section("Collectives"), FAMILIES.values()),
    ):
        for table in tables:
            for kind in table:
                for word in {kind, *table[kind].model_fields} - {"kind"}:
                    assert re.search(rf"\b{word}\b", text), f"{kind}.{word} is not in its section"


def test_the_collectives_table_is_what_its_command_prints(tmp_path, monkeypatch, capsys):
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    monkeypatch.chdir(tmp_path)
    (command,) = (c for c in COMMANDS if "scenarios/8gpu_ring.yaml --sizes" in c)
    assert run_command_line(shlex.split(command)[3:]) == 0
    (shown,) = re.findall(r"```\n(all_reduce, auto.*?)```", README, re.DOTALL)

    def words(text):
        return [line.split() for line in text.splitlines() if line.strip(" ─")]

    assert words(capsys.readouterr().out) == words(shown)


def test_the_metrics_named_in_the_readme_exist():
    for name in ("step_time", "compute", "update", "exposed_comm", "wait", "other"):
        assert f"{name}_s" in ORDER
