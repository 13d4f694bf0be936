"""Many points: the same results from any executor, and from the store."""

import numpy as np
import pytest

from simdp.engine import simulate as engine
from simdp.errors import DeadlockError
from simdp.studies import many
from simdp.studies.executor import Failed, SerialExecutor
from simdp.studies.executor.processes import ProcessExecutor
from simdp.studies.many import simulate_all
from simdp.studies.store import Store


@pytest.fixture
def points(load):
    rest = {"device": "t4-16gb", "link": "pcie3-x16"}
    return [load(cluster={"world_size": size, **rest}) for size in (1, 2, 3, 4)]


def same(ones, others):
    for one, other in zip(ones, others, strict=True):
        assert one.scenario == other.scenario
        assert repr(one.metrics) == repr(other.metrics)
        assert np.array_equal(one.step_ends, other.step_ends)
        assert (one.trace is None) == (other.trace is None)
        if one.trace is not None:
            assert list(one.trace.spans) == list(other.trace.spans)


def test_a_point_is_what_it_is_alone(points):
    with SerialExecutor() as here:
        found = simulate_all(points, executor=here, keep_trace=[False, False, None, True])
    alone = [engine.simulate(point, keep_trace=True) for point in points]
    for one in alone[:2]:
        one.trace = None
    same(found, alone)
    assert repr(found[3].launched()) == repr(alone[3].launched())
    assert [one.replicas for one in found] == [None] * 4


@pytest.mark.long
@pytest.mark.slow
def test_any_executor_and_the_store_give_the_same(points, tmp_path):
    with SerialExecutor() as here, Store(tmp_path) as store:
        serial = simulate_all(points, executor=here, store=store, keep_trace=True)
    with ProcessExecutor(2) as two:
        same(simulate_all(points, executor=two, keep_trace=True), serial)
        with Store(tmp_path, go_on=True) as store:
            same(simulate_all(points, executor=two, store=store, keep_trace=True), serial)
            assert store.num_found == 4


def test_a_point_that_fails_leaves_the_others_alone(points, tmp_path, monkeypatch):
    def failing(point, **options):
        if point.cluster.world_size == 2:
            raise DeadlockError(["rank 0 waits"])
        return engine.simulate(point, **options)

    monkeypatch.setattr(many, "simulate", failing)
    with SerialExecutor() as here, Store(tmp_path) as store:
        found = simulate_all(points, executor=here, store=store)
    assert isinstance(found[1], Failed)
    assert found[1].reason == "deadlock: rank 0 waits"
    assert [one.world_size for one in found if not isinstance(one, Failed)] == [1, 3, 4]
    monkeypatch.undo()
    with SerialExecutor() as here, Store(tmp_path, go_on=True) as store:
        again = simulate_all(points, executor=here, store=store)
        assert store.num_found == 3  # what failed may not fail again
    assert again[1].world_size == 2


def test_progress_counts_what_the_store_had(points, tmp_path):
    with SerialExecutor() as here, Store(tmp_path) as store:
        simulate_all(points[:2], executor=here, store=store)
    seen = []
    with SerialExecutor() as here, Store(tmp_path, go_on=True) as store:
        simulate_all(points, executor=here, store=store, progress=lambda *of: seen.append(of))
    assert seen == [(2, 4), (3, 4), (4, 4)]
