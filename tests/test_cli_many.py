"""Options of commands that play many points: who plays them, where they are kept, and tables."""

import csv
import json
import sqlite3
import sys
from pathlib import Path

import pytest

from simdp.cli import run_command_line
from simdp.errors import DeadlockError
from simdp.studies import many
from simdp.studies.executor import dask
from simdp.studies.store import FILE

pytestmark = pytest.mark.slow

SWEEP = """\
# How do two ranks compare with one?
cluster: {world_size: 2, device: a100-sxm4-80gb, topology: ring, link: nvlink3}
workload:
  model: {kind: mlp, widths: [4, 3]}
  dataset: {kind: regression, num_samples: 32}
  microbatch: 4
  steps: 3
sweep: {cluster.world_size: [1, 2, 3]}
"""
RUN = ("run", "sweep.yaml", "--no-plots")
COMPARE = ("compare", "sweep.yaml", "--set", "sweep=null", "--over", "strategy=single,ddp")


@pytest.fixture
def say(tmp_path, monkeypatch, capsys):
    """Run one command; return its status, standard output, and the lines on standard error."""
    monkeypatch.chdir(tmp_path)
    Path("sweep.yaml").write_text(SWEEP)

    def say(*arguments):
        status = run_command_line([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out, err.splitlines()

    return say


def rows_of(name):
    return list(csv.DictReader(Path(name).read_text().splitlines()))


def test_points_are_kept_beside_the_folders_of_runs_and_found_by_other_studies(say):
    assert say(*RUN, "--quiet") == (0, "", [])
    assert Path("runs", FILE).is_file()
    longer = "sweep.cluster.world_size=[1,2,3,4]"
    status, _, err = say(*RUN, "--set", longer, "--continue")
    assert (status, err) == (0, ["points that were done already: 2"])  # the last has its trace
    assert say(*RUN, "--out", "o", "--store", f"runs/{FILE}", "--continue")[2] == [
        "points that were done already: 3"
    ]


@pytest.mark.long
@pytest.mark.parametrize("command", [RUN, COMPARE])
def test_the_files_are_the_same_for_any_number_of_workers(say, command):
    for number in (1, 2):
        out = ("--out", f"{number}", "--workers", number, "--table", f"{number}/table.csv")
        assert say(*command, *out, "--quiet") == (0, "", [])
    names = {path.name for path in Path("1").iterdir()}
    assert {"table.csv", FILE} < names
    for name in names - {FILE}:
        assert Path("1", name).read_bytes() == Path("2", name).read_bytes()


def test_workers_and_a_scheduler_contradict_each_other(say):
    status, _, err = say(*RUN, "--workers", 2, "--scheduler", "tcp://127.0.0.1:1")
    said = "--workers: a scheduler has workers of its own; leave one of the two out."
    assert (status, err) == (2, [said])


@pytest.mark.parametrize("command", [RUN, COMPARE, ("job", "sweep.yaml"), ("validate", "v.yaml")])
def test_a_scheduler_that_is_not_there_is_a_line_and_nothing_is_written(say, command, monkeypatch):
    monkeypatch.setattr(dask, "PATIENCE", 0.3)
    measured = "measured: {source: x, noise: 1 %, points: [{set: {}, step_time: 1 ms}]}\n"
    Path("v.yaml").write_text(SWEEP.replace("sweep:", "# ") + measured)
    status, out, (line,) = say(*command, "--scheduler", "tcp://127.0.0.1:1")
    assert (status, out) == (2, "")
    wanted = ("--scheduler tcp://127.0.0.1:1: no scheduler", "--scheduler: needs distributed")
    assert line.startswith(wanted)
    assert sorted(path.name for path in Path().iterdir()) == ["sweep.yaml", "v.yaml"]


def test_a_store_of_another_layout_is_a_line(say):
    assert say(*RUN, "--quiet")[0] == 0
    with sqlite3.connect(f"runs/{FILE}") as connection:
        connection.execute("pragma user_version = 9")
    status, _, (line,) = say(*RUN, "--continue")
    assert status == 2
    assert line.startswith(f"runs/{FILE}: was written by another version of simdp")


def test_points_of_another_version_are_counted(say):
    assert say(*RUN, "--quiet")[0] == 0
    with sqlite3.connect(f"runs/{FILE}") as connection:
        connection.execute("update records set version = '0.0.1', key = key || 'x'")
    status, _, err = say(*RUN, "--continue")
    assert status == 0
    assert err == [
        "points that were done already: 0",
        f"runs/{FILE}: 3 points are of other versions of simdp, and were not taken",
    ]


OPTIONS = [("--workers", 2), ("--store", "x"), ("--scheduler", "tcp://x:1")]


@pytest.mark.parametrize(("option", "value"), OPTIONS)
def test_a_run_without_a_sweep_has_no_points_to_share(say, option, value):
    status, _, err = say(*RUN, "--set", "sweep=null", option, value)
    assert (status, err) == (
        2,
        [f"{option}: a run without a sweep has no points; leave it out."],
    )


# What fails ---------------------------------------------------------------------------------------


@pytest.fixture
def failing(monkeypatch):
    simulate = many.simulate

    def fails(point, **options):
        if point.cluster.world_size == 1:
            raise DeadlockError(["rank 0 waits"])
        return simulate(point, **options)

    monkeypatch.setattr(many, "simulate", fails)


@pytest.mark.long
def test_a_point_that_fails_does_not_lose_the_study(say, failing):
    status, out, err = say("run", "sweep.yaml", "--table", "t.csv")
    assert status == 4
    assert err == ["1 of 3 points failed: deadlock: rank 0 waits"]
    assert "cluster.world_size=1 failed: deadlock: rank 0 waits" in out
    points = json.loads(Path("runs/sweep/result.json").read_text())["points"]
    assert [point["metrics"] is None for point in points] == [True, False, False]
    assert points[0]["problems"] == ["deadlock: rank 0 waits"]
    rows = rows_of("t.csv")
    assert [row["failed"] for row in rows] == ["deadlock: rank 0 waits", "", ""]
    assert [row["cluster.world_size"] for row in rows] == ["1", "2", "3"]
    assert rows[0]["step_time_s"] == ""
    assert float(rows[1]["step_time_s"]) == points[1]["metrics"]["step_time_s"]
    assert Path("runs/sweep/scaling.png").is_file()


# Tables -------------------------------------------------------------------------------------------


def test_a_table_has_a_row_for_each_point_of_a_comparison(say):
    assert say(*COMPARE, "--table", "t.csv", "--quiet")[0] == 0
    rows = rows_of("t.csv")
    assert [(row["strategy"], row["world_size"]) for row in rows] == [("single", "1"), ("ddp", "2")]
    document = json.loads(Path("runs/sweep-compare/comparison.json").read_text())
    for row, point in zip(rows, document["points"], strict=True):
        metrics = point["metrics"]
        assert float(row["memory_bytes.parameters"]) == metrics["memory_bytes"]["parameters"]
        assert float(row["peak_memory_bytes"]) == max(metrics["peak_memory_bytes"])
        assert float(row["last_loss"]) == metrics["loss"][-1]
        assert row["fits_memory"] == "true"


def test_a_table_is_refused_before_anything_is_played(say, monkeypatch):
    status, _, err = say(*RUN, "--table", "t.xlsx")
    assert status == 2
    assert err == [
        "--table t.xlsx: a table's name ends with .csv or .parquet; name it so, as sweep.csv."
    ]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    status, _, (line,) = say(*RUN, "--table", "t.parquet")
    assert status == 2
    assert "pip install 'simdp[table]'" in line
    assert [path.name for path in Path().iterdir()] == ["sweep.yaml"]


@pytest.mark.extra
def test_parquet_holds_the_same_as_csv(say):
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in ("t.csv", "t.parquet"):
        assert say(*RUN, "--table", name, "--quiet")[0] == 0
    table = parquet.read_table("t.parquet").to_pylist()
    rows = rows_of("t.csv")
    assert [row["step_time_s"] for row in table] == [float(row["step_time_s"]) for row in rows]
    assert [row["cluster.world_size"] for row in table] == [1, 2, 3]
    assert list(table[0]) == list(rows[0])
