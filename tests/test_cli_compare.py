"""``python -m simdp compare``: what it prints and writes, and what it refuses."""

import json
from pathlib import Path

import pytest
import yaml
from small_scenario import MINIMAL

from simdp.cli import run_command_line
from simdp.scenario import load_scenario

pytestmark = pytest.mark.slow

STRATEGIES = "strategy=single,ddp"


@pytest.fixture
def say(tmp_path, monkeypatch, capsys):
    """Compare the points of a small scenario; return status, output, and lines of errors."""
    monkeypatch.chdir(tmp_path)
    Path("box.yaml").write_text(yaml.safe_dump(MINIMAL))

    def say(*over, more=()):
        asked = [word for text in over for word in ("--over", text)]
        status = run_command_line(["compare", "box.yaml", *asked, *more])
        out, err = capsys.readouterr()
        return status, out, err.splitlines()

    return say


def test_it_prints_a_table_and_writes_a_record_with_a_picture(say):
    status, out, err = say(STRATEGIES)
    assert (status, err) == (0, [])
    for words in ("box: strategy compared", "single", "ddp", "same weights", "global_batch: 32"):
        assert words in out
    assert out.splitlines()[-1] == "files in runs/box-compare"
    names = sorted(path.name for path in Path("runs/box-compare").iterdir())
    assert names == ["comparison.json", "comparison.png", "report.html"]


def test_json_is_all_that_it_prints_and_the_same_as_the_file(say):
    status, out, err = say(STRATEGIES, more=("--json", "--no-plots", "--out", "here"))
    assert (status, err) == (0, [])
    assert out == Path("here/comparison.json").read_text()
    names = sorted(path.name for path in Path("here").iterdir())
    assert names == ["comparison.json", "points.sqlite"]
    content = json.loads(out)
    assert content["over"] == {"strategy": ["single", "ddp"]}
    assert [point["set"]["strategy"] for point in content["points"]] == ["single", "ddp"]
    assert content["points"][1]["metrics"]["step_time_s"] > 0


def test_the_record_loads_as_the_scenario_with_its_files(say, tmp_path):
    (tmp_path / "layers.csv").write_text("name,forward_us,backward_us,gradient_bytes\na,1,2,4000\n")
    model = {"kind": "profile", "path": "layers.csv"}
    settings = ("--set", f"workload={json.dumps({'model': model, 'microbatch': 2})}")
    assert say("strategy.overlap=true,false", more=(*settings, "--quiet"))[0] == 0
    again = load_scenario(tmp_path / "runs/box-compare/comparison.json")
    assert again.name == "box"
    assert again.workload.microbatch == 2


def test_quiet_prints_nothing(say):
    assert say(STRATEGIES, more=("--quiet",)) == (0, "", [])


def test_a_value_may_be_a_mapping_and_keys_make_a_grid(say):
    over = ("strategy=ddp,{kind: ddp, bucket_cap: 0 B}", "cluster.world_size=2,4")
    status, out, _ = say(*over, more=("--json", "--no-plots"))
    assert status == 0
    assert [point["set"] for point in json.loads(out)["points"]] == [
        {"strategy": strategy, "cluster.world_size": n}
        for strategy in ("ddp", {"kind": "ddp", "bucket_cap": "0 B"})
        for n in (2, 4)
    ]


def test_a_point_that_cannot_run_is_in_the_table_and_fails_nothing(say):
    status, out, err = say("cluster.world_size=4,0")
    assert (status, err) == (0, [])
    assert "world_size: 0 cannot run: cluster.world_size: 0 is out of range" in out


def test_if_no_point_can_run_nothing_is_written(say):
    status, out, err = say("cluster.world_size=0,-1")
    assert (status, out, len(err)) == (2, "", 2)
    assert err[0].startswith("box.yaml: with world_size: 0: cluster.world_size: 0 is out of range")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("over", "line"),
    [
        (
            ["strategy"],
            "--over strategy: is not KEY=V1,V2; write for example strategy=single,ddp.",
        ),
        (
            ["=single,ddp"],
            "--over =single,ddp: is not KEY=V1,V2; write for example strategy=single,ddp.",
        ),
        (
            ["strategy=single", "strategy=ddp"],
            "--over strategy=ddp: strategy is there already; give all its values at once.",
        ),
        (
            ["strategy=ddp"],
            "--over strategy=ddp: is one point, with nothing to compare it with; give two values "
            "or more, as in strategy=single,ddp.",
        ),
        (
            ["strategy="],
            "--over strategy: [] is not a list of values; write for example [1].",
        ),
    ],
)
def test_what_is_no_comparison_is_refused_in_one_line(say, over, line):
    assert say(*over) == (2, "", [line])


def test_values_that_are_no_yaml_are_refused(say):
    status, out, (line,) = say("strategy=single,{ddp")
    assert (status, out) == (2, "")
    assert line.startswith("--over strategy=single,{ddp:1: is not valid YAML")


def test_an_unknown_strategy_is_refused_with_a_hint(say):
    status, out, (line,) = say("strategy=single,dpd")
    assert (status, out) == (2, "")
    assert line.startswith("--over strategy: unknown strategy 'dpd'. Did you mean 'ddp'? Known: ")


def test_an_unknown_key_is_refused_with_a_hint(say):
    status, out, (line,) = say("strategi=single,ddp")
    assert (status, out) == (2, "")
    assert line.startswith("box.yaml: unknown key 'strategi'. Did you mean 'strategy'? Known: ")


def test_a_comparison_without_anything_to_compare_is_refused(say):
    status, out, (line,) = say()
    assert (status, out) == (2, "")
    assert "'--over'" in line


def test_a_scenario_with_a_sweep_is_refused_unless_the_sweep_is_left_out(say):
    Path("box.yaml").write_text(yaml.safe_dump({**MINIMAL, "sweep": {"seed": [1, 2]}}))
    assert say(STRATEGIES) == (
        2,
        "",
        [
            "box.yaml: sweep: compare has points of its own; leave it out, or --set sweep=null.",
        ],
    )
    assert say(STRATEGIES, more=("--set", "sweep=null", "--quiet"))[0] == 0
