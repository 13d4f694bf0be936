"""``python -m simdp plan``: what it prints and writes, and what it refuses."""

import json
from pathlib import Path

import pytest
import yaml
from small_scenario import MINIMAL

from simdp.cli import run_command_line
from simdp.results.plan import PlanResult

pytestmark = pytest.mark.slow

CHOOSE = ("--for", "fastest", "--choose", "strategy=ddp,fsdp", "--choose", "nodes=1:2")


@pytest.fixture
def say(tmp_path, monkeypatch, capsys):
    """Plan in an empty folder, with a small scenario there; return what is said."""
    monkeypatch.chdir(tmp_path)
    cluster = {
        **MINIMAL["cluster"],
        "world_size": 2,
        "devices_per_node": 2,
        "inter_node": {"topology": "switch", "link": {"alpha": "9 us", "bandwidth": "1 GB/s"}},
    }
    content = {**MINIMAL, "cluster": cluster, "target": {"samples": 1e6}}
    Path("box.yaml").write_text(yaml.safe_dump(content))

    def say(*words):
        status = run_command_line(["plan", *words])
        out, err = capsys.readouterr()
        return status, out, err.splitlines()

    return say


def test_a_folder_has_the_plan_its_page_and_a_scenario_of_each_option(say):
    status, out, err = say("box.yaml", *CHOOSE, "--out", "here")
    assert (status, err) == (0, [])
    assert "the fastest, and what comes next" in out
    found = PlanResult.load(Path("here/plan.json"))
    assert found.num_points == 4
    assert found.is_exact
    assert "by simulated times, of all points" in Path("here/report.html").read_text()
    files = sorted(path.name for path in Path("here").glob("option-*.yaml"))
    assert files == sorted(option.file for option in found.options)
    for option in found.options:
        raw = yaml.safe_load(Path("here", option.file).read_text())
        assert raw["cluster"]["world_size"] == option.world_size
    assert sorted(path.name for path in Path().iterdir()) == ["box.yaml", "here", "points"]


def test_json_is_all_that_it_prints_and_the_same_as_the_file(say):
    status, out, err = say("box.yaml", *CHOOSE, "--out", "here", "--json")
    assert (status, err) == (0, [])
    assert out == Path("here/plan.json").read_text()
    assert json.loads(out)["is_exact"] is True


def test_a_saved_result_is_a_scenario_too(say, capsys):
    assert run_command_line(["run", "box.yaml", "--no-plots", "--quiet", "--out", "run"]) == 0
    capsys.readouterr()
    plans = [
        say(path, *CHOOSE, "--out", "here", "--json")[1] for path in ("box.yaml", "run/result.json")
    ]
    told = [json.loads(plan) for plan in plans]
    assert told[0]["best"] == told[1]["best"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--for", "nicest"), "--for: unknown goal 'nicest'"),
        (
            ("--choose", "nodes=1,2", "--set", "cluster.device=t4-16gb"),
            "add cluster.price: 2 USD/h",
        ),
        (("--choose", "nodes"), "--choose nodes: is not KEY=V1,V2"),
        (("--choose", "nodes=1", "--choose", "nodes=2"), "is there already"),
        (("--choose", "nodes=1", "--budget", "much"), "--budget much: "),
        (("--choose", "nodes=8:1"), "--choose nodes=8:1: "),
        (("--choose", "nodes=1", "--deadline", "1 h", "--sure", "0.9"), "--sure 0.9: "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_said_in_a_line_and_nothing_is_written(say, words, line):
    status, out, err = say("box.yaml", *words, "--out", "here")
    assert (status, out) == (2, "")
    assert len(err) == 1
    assert line in err[0]
    assert not Path("here").exists()
