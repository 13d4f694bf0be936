"""A sweep that was stopped goes on, and nothing tells it from one that was not."""

import json
import sqlite3
import zlib
from pathlib import Path

import numpy as np
import pytest

from simdp.scenario import checked
from simdp.studies import many as module
from simdp.studies.store import FILE, Store
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


@pytest.mark.parametrize(
    "at", [pytest.param(0, marks=pytest.mark.long), 3, pytest.param(5, marks=pytest.mark.long)]
)
def test_a_sweep_that_was_stopped_goes_on_and_gives_the_same(tmp_path, played, at):
    whole, (seen, stop) = sweep(scenario()), played
    seen.clear()
    stop[0] = at
    with pytest.raises(KeyboardInterrupt):
        sweep(scenario(), store=Store(tmp_path))
    stop[0] = 99
    store = Store(tmp_path, go_on=True)
    same(sweep(scenario(), store=store), whole)
    assert (store.num_found, len(seen)) == (at, 6)


def test_a_sweep_that_is_done_plays_nothing_and_one_that_grew_the_rest(tmp_path, played):
    seen, _ = played
    first = sweep(scenario(), store=Store(tmp_path))
    seen.clear()
    same(sweep(scenario(), store=Store(tmp_path, go_on=True)), first)
    assert seen == []
    more = {**SIZES, "cluster.world_size": [1, 2, 3, 4]}
    same(sweep(scenario(more), store=Store(tmp_path, go_on=True)), sweep(scenario(more)))
    assert seen[:3] == [3, 4, 4]  # what was the last point had another clock, for its trace


def test_without_go_on_all_is_played_anew(tmp_path, played):
    seen, _ = played
    sizes = {"cluster.world_size": [1, 2]}
    sweep(scenario(sizes), store=Store(tmp_path))
    sweep(scenario(sizes), store=Store(tmp_path))
    assert len(seen) == 4


@pytest.mark.long
def test_several_processes_may_play_what_is_left(tmp_path):
    sizes = {"cluster.world_size": [1, 2, 3]}
    whole = sweep(scenario(sizes), workers=2, store=Store(tmp_path))
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("delete from records where more is null and key = (select min(key) "
                           "from records where more is null)")  # fmt: skip
    store = Store(tmp_path, go_on=True)
    same(sweep(scenario(sizes), workers=2, store=store), whole)
    assert store.num_found == 2


def test_a_point_of_something_else_is_not_taken(tmp_path):
    base = tmp_path / "data"
    base.mkdir()
    npz = {"dataset": {"kind": "npz", "path": "d.npz"}, "model": {"kind": "mlp", "widths": [2, 1]}}
    work = {**RAW["workload"], **npz}

    def go(go_on=True, **top):
        data = scenario({"cluster.world_size": [1]}, base, **{"workload": work, **top})
        store = Store(tmp_path / "points", go_on)
        sweep(data, store=store)
        return store.num_found

    np.savez(base / "d.npz", x=np.ones((64, 2)), y=np.ones((64, 1)))
    assert go() == 0
    assert go() == 1
    assert go(seed=1) == 0
    assert go(name="other") == 0
    np.savez(base / "d.npz", x=np.zeros((64, 2)), y=np.ones((64, 1)))
    assert go() == 0


@pytest.mark.long
def test_a_damaged_record_is_played_anew(tmp_path):
    sizes = {"cluster.world_size": [1, 2]}
    whole = sweep(scenario(sizes), store=Store(tmp_path))
    for column in ("value", "more"):
        for wrong in (b"", b"PK", zlib.compress(b"[]"), zlib.compress(b'{"metrics": 1}')):
            with sqlite3.connect(tmp_path / FILE) as connection:
                connection.execute(f"update records set {column} = ?", (wrong,))
            store = Store(tmp_path, go_on=True)
            same(sweep(scenario(sizes), store=store), whole)
            assert store.num_found == (1 if column == "more" else 0)


def test_what_is_not_finite_stays_so(tmp_path):
    work = {**RAW["workload"], "optimizer": {"kind": "sgd", "lr": 1e200}, "steps": 6}
    diverges = scenario({"cluster.world_size": [1, 2]}, workload=work)
    first = sweep(diverges, store=Store(tmp_path))
    again = sweep(diverges, store=Store(tmp_path, go_on=True))
    losses = [json.dumps([point.metrics["loss"] for point in one.points]) for one in (first, again)]
    assert losses[0] == losses[1]
    assert "NaN" in losses[0] or "Infinity" in losses[0]
