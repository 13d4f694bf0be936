"""Finished points in files: a sweep that was stopped goes on, and nothing tells it from another."""

import json
from pathlib import Path

import numpy as np
import pytest

from simdp.scenario import checked
from simdp.studies import sweep as module
from simdp.studies.points import Points
from simdp.studies.sweep import sweep

pytestmark = pytest.mark.slow

SIZES = {"cluster.world_size": [1, 2, 3], "strategy": ["ddp", "zero1"]}
RAW = {
    "cluster": {"world_size": 2, "device": "t4-16gb", "topology": "ring", "link": "pcie3-x16"},
    "workload": {
        "model": {"kind": "mlp", "widths": [8, 16, 4]},
        "dataset": {"kind": "regression", "num_samples": 64},
        "microbatch": 4,
        "steps": 3,
    },
    "collectives": {"all_reduce": "auto"},
}


def scenario(sweep=SIZES, base=Path(), **top):
    return checked({**RAW, **top, "sweep": sweep}, base)


@pytest.fixture
def played(monkeypatch):
    """The points that were played, and from which on playing is interrupted."""
    seen, stop, simulate = [], [99], module.simulate

    def counted(point, **options):
        if len(seen) == stop[0]:
            raise KeyboardInterrupt
        seen.append(point.cluster.world_size)
        return simulate(point, **options)

    monkeypatch.setattr(module, "simulate", counted)
    return seen, stop


def same(one, other):
    assert one.to_json() == other.to_json()
    assert list(one.points[-1].trace.spans) == list(other.points[-1].trace.spans)
    assert [point.trace is None for point in one.points[:-1]] == [True] * (len(one.points) - 1)


@pytest.mark.parametrize("at", [0, 3, 5])
def test_a_sweep_that_was_stopped_goes_on_and_gives_the_same(tmp_path, played, at):
    whole, (seen, stop) = sweep(scenario()), played
    seen.clear()
    stop[0] = at
    with pytest.raises(KeyboardInterrupt):
        sweep(scenario(), kept=Points(tmp_path))
    stop[0] = 99
    kept = Points(tmp_path, go_on=True)
    same(sweep(scenario(), kept=kept), whole)
    assert (kept.num_found, len(seen)) == (at, 6)


def test_a_sweep_that_is_done_plays_nothing_and_one_that_grew_the_rest(tmp_path, played):
    seen, _ = played
    first = sweep(scenario(), kept=Points(tmp_path))
    seen.clear()
    same(sweep(scenario(), kept=Points(tmp_path, go_on=True)), first)
    assert seen == []
    more = {**SIZES, "cluster.world_size": [1, 2, 3, 4]}
    same(sweep(scenario(more), kept=Points(tmp_path, go_on=True)), sweep(scenario(more)))
    assert seen[:3] == [3, 4, 4]  # what was the last point had another clock, for its trace


def test_without_go_on_all_is_played_anew(tmp_path, played):
    seen, _ = played
    sweep(scenario(), kept=Points(tmp_path))
    sweep(scenario(), kept=Points(tmp_path))
    assert len(seen) == 12


def test_several_processes_write_and_take_points_too(tmp_path):
    sizes = {"cluster.world_size": [1, 2, 3]}
    whole = sweep(scenario(sizes), processes=2, kept=Points(tmp_path))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 4
    next(path for path in tmp_path.glob("*.json")).unlink()
    kept = Points(tmp_path, go_on=True)
    same(sweep(scenario(sizes), processes=2, kept=kept), whole)
    assert kept.num_found == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_point_of_something_else_is_not_taken(tmp_path):
    base = tmp_path / "data"
    base.mkdir()
    npz = {"dataset": {"kind": "npz", "path": "d.npz"}, "model": {"kind": "mlp", "widths": [2, 1]}}
    work = {**RAW["workload"], **npz}

    def go(go_on=True, **top):
        data = scenario({"cluster.world_size": [1]}, base, **{"workload": work, **top})
        kept = Points(tmp_path / "points", go_on)
        sweep(data, kept=kept)
        return kept.num_found

    np.savez(base / "d.npz", x=np.ones((64, 2)), y=np.ones((64, 1)))
    assert go() == 0
    assert go() == 1
    assert go(seed=1) == 0
    assert go(name="other") == 0
    np.savez(base / "d.npz", x=np.zeros((64, 2)), y=np.ones((64, 1)))
    from simdp.studies.points import _print_of

    _print_of.cache_clear()  # as in a new process
    assert go() == 0


def test_a_damaged_file_is_played_anew(tmp_path):
    sizes = {"cluster.world_size": [1, 2]}
    whole = sweep(scenario(sizes), kept=Points(tmp_path))
    for path in list(tmp_path.iterdir()):
        content = path.read_bytes()
        for wrong in (b"", content[: len(content) // 2], b"[]", b'{"metrics": 1}'):
            path.write_bytes(wrong)
            same(sweep(scenario(sizes), kept=Points(tmp_path, go_on=True)), whole)
            assert path.read_bytes() == content or path.suffix == ".npz"


def test_what_is_not_finite_stays_so(tmp_path):
    work = {**RAW["workload"], "optimizer": {"kind": "sgd", "lr": 1e200}, "steps": 6}
    diverges = scenario({"cluster.world_size": [1, 2]}, workload=work)
    first = sweep(diverges, kept=Points(tmp_path))
    again = sweep(diverges, kept=Points(tmp_path, go_on=True))
    losses = [json.dumps([point.metrics["loss"] for point in one.points]) for one in (first, again)]
    assert losses[0] == losses[1]
    assert "NaN" in losses[0] or "Infinity" in losses[0]
