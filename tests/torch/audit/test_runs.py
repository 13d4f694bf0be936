"""Runs of a script side by side, in one folder."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from simdp.torch.audit.runs import Program, Run, Runner


def writes_and_reads():
    Path("weights.txt").write_text("1.5")
    assert Path("weights.txt").read_text() == "1.5"


def writes():
    Path("weights.txt").write_text("1.5")


def reads():
    assert Path("given.txt").read_text() == "2.5"


@pytest.mark.parametrize(("train", "workers"), [(writes_and_reads, 1), (writes, 2), (reads, 2)])
def test_runs_that_read_what_they_write_are_not_side_by_side(train, workers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given.txt").write_text("2.5")
    runner = Runner(Program("train", None, train), workers=2)
    records = runner.run([Run(1), Run(2)])
    assert [record.error for record in records] == ["", ""]
    assert runner.workers == workers


def goes_on():
    """Read what an earlier run has written."""
    path = Path("snapshot.txt")
    if not path.exists():
        path.write_text("1.5")
    assert path.read_text() == "1.5"


def test_files_of_earlier_runs_are_noted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = Runner(Program("train", None, goes_on), workers=1)
    runner.run([Run(1)])
    assert runner.earlier == set()
    runner.run([Run(1)])
    assert runner.earlier == {"snapshot.txt"}
