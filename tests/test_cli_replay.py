"""``python -m simdp replay``: a scenario, its profile, and what was found."""

from __future__ import annotations

from pathlib import Path

import pytest

from simdp.cli import run_command_line
from simdp.scenario import load_scenario
from tests.studies.replay.kineto_job import Job


def test_a_scenario_and_its_profile_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, out = Job().write(tmp_path / "rank0.json"), tmp_path / "out" / "job.yaml"
    assert run_command_line(["replay", str(trace), "--out", str(out), "--microbatch", "4"]) == 0
    said = capsys.readouterr().out
    assert "1 of 2 ranks, 3 steps" in said
    assert "ddp, gradients of 2.4 MB" in said
    assert "links are fitted to 2 collectives" in said
    assert (tmp_path / "out" / "job.csv").exists()
    scenario = load_scenario(out, {"cluster.world_size": 8})
    assert scenario.workload.microbatch == 4
    assert "# made by: python -m simdp replay rank0.json" in out.read_text()
    folder = tmp_path / "runs"
    arguments = ["run", str(out), "--set", "sweep={cluster.world_size: [2, 4]}", "--no-plots"]
    assert run_command_line([*arguments, "--quiet", "--out", str(folder)]) == 0


def test_a_machine_and_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "traces").mkdir()
    for rank in range(2):
        Job().write(tmp_path / "traces" / f"rank{rank}.json", rank)
    out = tmp_path / "job.yaml"
    arguments = ["replay", str(tmp_path / "traces"), "--machine", "dgx-a100", "--out", str(out)]
    assert run_command_line(arguments) == 0
    assert "2 of 2 ranks, 6 steps" in capsys.readouterr().out
    assert load_scenario(out).cluster.machine == "dgx-a100"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--out", "job.txt"], "--out job.txt: is no YAML file; write for example scenario.yaml"),
        (["--gradients", "5"], "--gradients: 5 has no unit"),
        (["--gradients", "5 MB"], "--gradients: collectives of the traces tell it; leave it out."),
        (["--machine", "dgx-h10"], "unknown machine 'dgx-h10'"),
    ],
)
def test_wrong_input_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    more: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    trace = Job().write(tmp_path / "rank0.json")
    assert run_command_line(["replay", str(trace), *more]) == 2
    found = capsys.readouterr().err
    assert said in found
    assert found.count("\n") == 1
    assert not (tmp_path / "scenario.yaml").exists()
