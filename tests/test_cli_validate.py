"""``python -m simdp validate``: what it prints and writes, and what it refuses."""

import json
import os
from pathlib import Path

import pytest
import yaml
from small_scenario import MINIMAL

from simdp.cli import run_command_line

TABLE = {"collective": "all_reduce", "times": {"1 MiB": "70 us", "64 MiB": "4.1 ms"}}


@pytest.fixture
def say(tmp_path, monkeypatch, capsys):
    """Validate a small scenario; return status, output, and lines of errors."""
    monkeypatch.chdir(tmp_path)
    points = [
        {"set": {"cluster.world_size": 2}, "step_time": "58 us", "role": "calibration"},
        {"step_time": "100 us"},
    ]
    measured = {"source": "a bench", "points": points, "collectives": [TABLE]}
    Path("box.yaml").write_text(yaml.safe_dump({**MINIMAL, "measured": measured}))

    def say(*arguments, path="box.yaml"):
        status = run_command_line(["validate", path, *arguments])
        out, err = capsys.readouterr()
        return status, out, err.splitlines()

    return say


def files(folder="runs/validation"):
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.mark.slow
def test_folders_that_vanish_while_they_are_walked_are_left_out_and_closed_ones_listed(
    say, monkeypatch
):
    def unless_closed(function):
        def call(path, *more, **options):
            if Path(path).name == "gone":
                Path(path).rmdir()
            if Path(path).name == "closed":
                raise PermissionError(13, "Permission denied", str(path))
            return function(path, *more, **options)

        return call

    Path("there/gone").mkdir(parents=True)
    Path("box.yaml").rename("there/box.yaml")
    monkeypatch.setattr(os, "scandir", unless_closed(os.scandir))
    monkeypatch.setattr(os, "open", unless_closed(os.open))
    assert say("--no-plots", path="there")[::2] == (0, [])
    Path("there/closed").mkdir()
    status, _, (line,) = say("--no-plots", path="there")
    assert (status, line) == (2, "there/closed: cannot be read: Permission denied.")


@pytest.mark.slow
def test_it_prints_points_and_clusters_and_writes_a_page_with_pictures(say):
    status, out, err = say()
    assert (status, err) == (0, [])
    for words in ("predicted", "calibration", "100 us", "Step times", "Collectives"):
        assert words in out
    assert out.splitlines()[-1] == "files in runs/validation"
    assert files() == [
        "collectives_against_measured.png",
        "report.html",
        "report.md",
        "simulated_against_measured.png",
        "throughput_box.png",
        "validation.json",
    ]
    page = Path("runs/validation/report.md").read_text()
    assert all(f"({name})" in page for name in files() if name.endswith("png"))


def test_json_is_all_that_it_prints_and_the_same_as_the_file(say):
    status, out, err = say("--json", "--no-plots", "--out", "here")
    assert (status, err) == (0, [])
    assert files("here") == ["points.sqlite", "report.md", "validation.json"]
    assert out == Path("here/validation.json").read_text()
    assert [point["role"] for point in json.loads(out)["points"]] == ["calibration", "predicted"]


def test_quiet_prints_nothing(say):
    assert say("--quiet", "--no-plots") == (0, "", [])


def test_a_mean_error_beyond_the_limit_is_status_3_and_says_of_what(say):
    _, out, _ = say("--json", "--no-plots")
    steps = json.loads(out)["clusters"][0]["mean_error"]
    tables = json.loads(out)["collectives"][0]["mean_error"]
    status, _, err = say("--quiet", "--no-plots", "--max-error", "0.1%")
    said = [f"{error:.1%}".replace("%", " %") for error in (steps, tables)]
    assert status == 3
    assert err == [
        f"box: the mean error of its predicted steps is {said[0]}, and may be 0.1 %.",
        f"box: the mean error of its predicted collectives is {said[1]}, and may be 0.1 %.",
    ]
    assert files() == ["report.md", "validation.json"]


def test_a_mean_error_within_the_limit_is_status_0(say):
    assert say("--quiet", "--no-plots", "--max-error", "1000 %") == (0, "", [])


@pytest.mark.parametrize("text", ["10", "ten", "-3%"])
def test_a_limit_that_is_no_share_is_refused(text, say):
    assert say("--no-plots", "--max-error", text) == (
        2,
        "",
        [f'--max-error: {text!r} is not a share of 0 % or more; write for example "2 %".'],
    )
    assert not Path("runs/validation").exists()


def test_a_path_that_is_not_there_is_refused(say):
    assert say(path="nothing.yaml") == (2, "", ["nothing.yaml: there is no such file."])


def test_a_scenario_that_is_wrong_is_refused_before_anything_is_written(say):
    Path("bad.yaml").write_text(Path("box.yaml").read_text().replace("5 us", "5 B"))
    status, out, err = say(path="bad.yaml")
    assert (status, out) == (2, "")
    assert err == ["bad.yaml: cluster.link.alpha: '5 B' is not a time; write for example \"5 us\"."]
    assert not Path("runs/validation").exists()


BAD_POINT = "bad.yaml: measured.points.1: step_time: '100 B' is not a time; write for example"


@pytest.fixture
def with_bad_point(say):
    """Write a scenario with a wrong point, which is its only predicted one."""
    text = Path("box.yaml").read_text().replace("100 us", "100 B")
    Path("bad.yaml").write_text(text)
    return "bad.yaml"


def test_a_wrong_point_does_not_refuse_the_others_and_is_status_2(say, with_bad_point):
    status, out, (line,) = say("--no-plots", path=with_bad_point)
    assert status == 2
    assert line.startswith(BAD_POINT)
    assert "Not compared, since wrong: 1 point; report.md lists them" in out
    found = json.loads(Path("runs/validation/validation.json").read_text())
    (wrong,) = found["not_compared"]
    assert (wrong["file"], wrong["point"]) == ("bad.yaml", "points.1")
    assert (len(found["points"]), found["excluded"]) == (1, [])
    assert wrong["reason"] in Path("runs/validation/report.md").read_text()


def test_without_a_predicted_point_wrong_ones_are_named_before_the_limit(say, with_bad_point):
    text = Path(with_bad_point).read_text()
    Path(with_bad_point).write_text(
        text.split("  collectives:")[0] + text[text.index("  points:") :]
    )
    status, out, lines = say("--max-error", "10%", path=with_bad_point)
    assert (status, out, len(lines)) == (2, "", 2)
    assert lines[0].startswith(BAD_POINT)
    assert lines[1].startswith("--max-error: nothing is predicted")


def test_a_limit_holds_for_peaks_of_memory(say):
    measured = {"source": "a bench", "memory": [{"allocated": "1 GB"}]}
    Path("all.yaml").write_text(yaml.safe_dump({**MINIMAL, "measured": measured}))
    status, _, lines = say("--max-error", "10%", path="all.yaml")
    assert status == 3
    assert "peaks of memory" in lines[0]


def test_a_limit_needs_something_that_is_predicted(say):
    point = {"step_time": "100 us", "role": "calibration"}
    measured = {"source": "a bench", "points": [point]}
    Path("all.yaml").write_text(yaml.safe_dump({**MINIMAL, "measured": measured}))
    status, out, (line,) = say("--max-error", "10%", path="all.yaml")
    assert (status, out) == (2, "")
    assert line.startswith("--max-error: nothing is predicted; give points role: predicted")
    assert not Path("runs/validation").exists()


def nodes(count, seconds):
    """A point between so many nodes."""
    return {"set": {"cluster.world_size": 2 * count}, "step_time": seconds}


@pytest.fixture
def rack():
    """Write a scenario of two numbers of nodes beside the small one."""
    inter = {"topology": "switch", "link": {"alpha": "5 us", "bandwidth": "10 GB/s"}}
    cluster = {**MINIMAL["cluster"], "devices_per_node": 2, "inter_node": inter}
    measured = {"source": "a bench", "points": [nodes(1, "60 us"), nodes(2, "90 us")]}
    raw = {**MINIMAL, "cluster": cluster, "measured": measured}
    Path("rack.yaml").write_text(yaml.safe_dump(raw))
    return "rack.yaml"


@pytest.mark.slow
def test_what_is_left_out_gets_a_line_and_stands_in_the_files(say, rack):
    status, out, err = say("--leave-out", "nodes", "--no-plots", path=rack)
    assert (status, err) == (0, [])
    for words in ("Step times without their nodes", "1 node on rack", "mean over 2 folds"):
        assert words in out
    plain = json.loads(Path("runs/validation/validation.json").read_text())
    assert plain["leave_out"] == "nodes"
    assert [point["fold"] for point in plain["points"]] == ["1 node on rack", "2 nodes on rack"]
    fields = {"name", "kind", "num_points", "mean_error", "worst_error", "tau", "inside", "width"}
    assert all(fields < fold.keys() for fold in plain["folds"])
    assert "## Step times without their nodes" in Path("runs/validation/report.md").read_text()


@pytest.mark.slow
def test_max_error_is_of_what_was_left_out(say, rack):
    assert say("--leave-out", "nodes", "--no-plots", "--max-error", "0%", path=rack)[0] == 3
    assert say("--leave-out", "nodes", "--no-plots", "--max-error", "1000%", path=rack)[0] == 0


def test_what_cannot_be_left_out_is_refused(say):
    status, _, err = say("--leave-out", "batch")
    assert status == 2
    assert err == [
        "--leave-out: unknown thing to leave out 'batch'; known: model, kind, "
        "precision, nodes, scale, collective, cluster."
    ]
    status, _, err = say("--leave-out", "collective")
    assert status == 2
    assert err == [
        "--leave-out collective: nothing can be left out: box has only all_reduce; give scenarios "
        "of one cluster with several, or leave out cluster."
    ]


@pytest.mark.slow
def test_it_fits_a_terminal_of_80_columns_and_a_wider_one_shows_more(say, rack, monkeypatch):
    peaks = [{"allocated": "1 GB"}, {"set": {"workload.microbatch": 16}, "out_of_memory": True}]
    measured = {"source": "a bench", "memory": peaks}
    Path("memory.yaml").write_text(yaml.safe_dump({**MINIMAL, "measured": measured}))
    lines = {}
    for columns in (80, 140):
        monkeypatch.setenv("COLUMNS", str(columns))
        _, out, _ = say("--no-plots", path=".")
        _, left_out, _ = say("--no-plots", "--leave-out", "nodes", path=".")
        lines[columns] = [*out.splitlines(), *left_out.splitlines()]
    assert max(map(len, lines[80])) <= 80 < max(map(len, lines[140]))
    assert any("out of memory" in line for line in lines[80])
    assert any(line.startswith("Not shown in 80 columns: ") for line in lines[80])
    assert not any("Not shown" in line for line in lines[140])
