"""run --stop-after, --save-state and --resume: files that are those of the run without a stop."""

import json
from pathlib import Path

import numpy as np
import pytest

from simdp.cli import run_command_line

SMALL = """\
cluster: {world_size: 4, device: a100-sxm4-80gb, topology: ring, link: nvlink3}
workload:
  model: {kind: mlp, widths: [4, 6, 3]}
  dataset: {kind: regression, num_samples: 40}
  optimizer: {kind: adam, lr: 0.01}
  global_batch: 8
  epochs: 2
  shuffle: true
strategy: zero1
"""


@pytest.fixture
def say(tmp_path, monkeypatch, capsys):
    """Run one command in a folder of its own; return its status, and what it complains of."""
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL)
    Path("sweep.yaml").write_text(SMALL + "sweep: {cluster.world_size: [2, 4]}\n")

    def say(*arguments):
        status = run_command_line([*map(str, arguments)])
        return status, capsys.readouterr().err.splitlines()

    return say


def made():
    return sorted(
        str(path) for path in Path().rglob("*") if path.is_file() and path.suffix != ".yaml"
    )


def run(say, *arguments):
    assert say("run", "small.yaml", "--no-plots", "--quiet", *arguments) == (0, [])


@pytest.mark.slow
def test_a_run_that_is_resumed_writes_the_files_of_one_that_never_stopped(say):
    run(say, "--out", "whole", "--save-weights", "whole/weights.npz")
    run(say, "--out", "part", "--stop-after", 7, "--save-state", "state.npz")
    run(say, "--out", "again", "--resume", "state.npz", "--save-weights", "again/weights.npz")
    for name in ("result.json", "trace.json"):
        assert Path("again", name).read_bytes() == Path("whole", name).read_bytes()
    part, whole = (json.loads(Path(of, "result.json").read_text()) for of in ("part", "whole"))
    losses = whole["points"][0]["metrics"]["loss"]
    assert len(losses) == 10
    assert part["points"][0]["metrics"]["loss"] == losses[:7]
    with np.load("whole/weights.npz") as wanted, np.load("again/weights.npz") as found:
        assert {name: found[name].tobytes() for name in found.files} == {
            name: wanted[name].tobytes() for name in wanted.files
        }


def test_the_same_run_writes_the_same_state(say):
    for name in ("one", "other"):
        run(say, "--stop-after", 3, "--save-state", f"{name}.npz")
    assert Path("one.npz").read_bytes() == Path("other.npz").read_bytes()


@pytest.mark.slow
def test_a_run_goes_on_on_another_number_of_ranks(say):
    run(say, "--out", "whole")
    run(say, "--stop-after", 3, "--save-state", "first.npz")
    smaller = ("--set", "cluster.world_size=2", "--resume", "first.npz")
    run(say, *smaller, "--stop-after", 6, "--save-state", "second.npz")
    run(say, "--out", "again", "--resume", "second.npz")
    whole, again = (json.loads(Path(of, "result.json").read_text()) for of in ("whole", "again"))
    losses = [found["points"][0]["metrics"]["loss"] for found in (whole, again)]
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    [("--stop-after", 1), ("--save-state", "s.npz"), ("--resume", "s.npz")],
    ids=lambda part: part[0],
)
def test_a_sweep_neither_stops_nor_goes_on(say, part):
    assert say("run", "sweep.yaml", *part) == (
        2,
        [f"{part[0]}: a sweep has many runs; leave it out, or --set sweep={{}}."],
    )
    assert made() == []
    assert say("run", "sweep.yaml", "--no-plots", "--set", "sweep={}", "--stop-after", 1)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("--stop-after", 11),
            "--stop-after: 11 is not among the remaining steps; the run has 10, of which 0 are "
            "done.",
        ),
        (("--resume", "none.npz"), "none.npz: there is no such file."),
        (("--resume", "small.yaml"), "small.yaml: is not an npz file of arrays."),
        (
            ("--resume", "foreign.npz"),
            "foreign.npz: is not a state written by run --save-state: state: it has no array "
            "of that name.",
        ),
        (
            ("--stop-after", 2, "--out", "small.yaml"),
            "small.yaml: is no folder; name one to write to.",
        ),
    ],
)
def test_what_is_refused_writes_nothing(say, arguments, line):
    np.savez("foreign.npz", x=np.zeros(3))
    before = made()
    status, complaints = say("run", "small.yaml", "--save-state", "state.npz", *arguments)
    assert (status, complaints) == (2, [line])
    assert made() == before


def test_a_state_of_another_scenario_is_refused(say):
    run(say, "--stop-after", 3, "--save-state", "state.npz")
    status, complaints = say("run", "small.yaml", "--set", "seed=1", "--resume", "state.npz")
    assert (status, complaints) == (
        2,
        [
            "seed: is 1, but was 0 in the stopped run; resume with the same scenario, "
            "or leave --resume out."
        ],
    )
