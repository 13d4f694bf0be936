"""``python -m simdp job``: a table, or JSON and nothing else; pictures; what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml
from for_each import for_each
from small_scenario import CLUSTER

from simdp.cli import run_command_line

pytestmark = pytest.mark.slow

JOB = {
    "name": "days",
    "cluster": {
        **CLUSTER,
        "failures": [{"kind": "exponential", "per": "job", "mtbf": "1 h"}],
    },
    "workload": {
        "model": {"kind": "parameters", "num_params": 1000},
        "microbatch": 1,
        "steps": 10_000,
        "compute": {"kind": "measured", "points": [{"microbatch": 1, "step_time": "2 s"}]},
    },
    "checkpoint": {"every": "daly", "write": "20 s"},
    "recovery": {"restart": "5 min"},
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "days.yaml"
    path.write_text(yaml.safe_dump(JOB))
    return path


def asked(path, *more):
    folder = path.parent / "out"
    return run_command_line(
        ["job", str(path), "--runs", "10", "--workers", "1", "--out", str(folder), *more]
    )


def test_the_table_and_the_files_of_a_job(path, capsys):
    assert asked(path, "--until", "7 h") == 0
    out = capsys.readouterr().out
    assert "days: 10 runs" in out
    assert "done within 7 h" in out
    files = {file.name for file in (path.parent / "out").iterdir()}
    assert files == {"points.sqlite", "job.json", "job_finish.png", "job_strip.png", "report.html"}


def test_json_alone_and_a_second_time_from_what_was_done(path, capsys):
    assert asked(path, "--json", "--no-plots") == 0
    first = capsys.readouterr().out
    assert json.loads(first)["runs"] == 10
    assert (path.parent / "out" / "job.json").read_text() == first
    assert asked(path, "--json", "--no-plots", "--continue") == 0
    assert capsys.readouterr().out == first


def test_quiet_says_nothing(path, capsys):
    assert asked(path, "--quiet", "--no-plots") == 0
    assert capsys.readouterr() == ("", "")


@for_each(
    ("more", "line"),
    [
        (["--until", "3"], '--until: 3 has no unit; write for example "3 days".'),
        (["--until", "0 s"], '--until: 0 s is out of range; write for example "3 days".'),
        (
            ["--set", "workload.steps=null"],
            "workload.steps: the job has no end without a data set or a number of steps; "
            "add steps: 100000, or a target.",
        ),
    ],
)
def test_what_is_wrong_is_one_line(more, line, tmp_path, capsys):
    path = tmp_path / "days.yaml"
    path.write_text(yaml.safe_dump(JOB))
    assert asked(path, *more) == 2
    assert capsys.readouterr().err.strip().endswith(line)


SMALL = {
    **JOB,
    "cluster": {
        **CLUSTER,
        "failures": [{"kind": "exponential", "per": "job", "mtbf": "20 ms"}],
    },
    "workload": {
        "model": {"kind": "mlp", "widths": [16, 32, 4]},
        "dataset": {"kind": "regression", "num_samples": 512},
        "microbatch": 8,
        "optimizer": "adam",
        "steps": 60,
    },
    "checkpoint": {"every": 10, "write": "1 ms"},
    "recovery": {"kind": "restart", "detection": "1 ms", "restart": "2 ms", "load": "1 ms"},
}


def test_training_through_failures_ends_with_the_bits_of_a_run_that_never_failed(path, capsys):
    path.write_text(yaml.safe_dump(SMALL))
    whole = path.parent / "whole.npz"
    more = ["--quiet", "--no-plots"]
    assert run_command_line(["run", str(path), "--save-weights", str(whole), *more]) == 0
    assert asked(path, "--train", "--json", "--no-plots") == 0
    trained = json.loads(capsys.readouterr().out)["trained"]
    assert trained["counted"] == 60 * 4 * 8
    assert trained["repeated"] > 0
    assert len(trained["loss"]) == 60
    with np.load(whole) as a, np.load(path.parent / "out" / "weights.npz") as b:
        assert {name: a[name].tobytes() for name in a} == {name: b[name].tobytes() for name in b}


def test_training_is_told_in_the_table_and_each_point_of_a_sweep_has_its_weights(path, capsys):
    path.write_text(yaml.safe_dump(SMALL))
    assert asked(path, "--train", "--no-plots") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "the first run trained on 1,920 samples, " in out
    assert " were repeated, to a loss of 0." in out
    path.write_text(yaml.safe_dump({**SMALL, "sweep": {"seed": [1, 2]}}))
    assert asked(path, "--train", "--no-plots", "--quiet") == 0
    assert (path.parent / "out" / "weights-1.npz").is_file()


def test_training_needs_numbers(path, capsys):
    assert asked(path, "--train") == 2
    assert capsys.readouterr().err == (
        "--train: numerics: false trains nothing; leave one of them out.\n"
    )
