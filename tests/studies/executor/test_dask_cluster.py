"""A Dask scheduler: nothing lost and nothing twice, whoever dies, and the same results."""

import gc
import os
import signal
import threading
from functools import partial

import pytest
from for_each import for_each

from simdp.errors import ScenarioError
from simdp.scenario import checked
from simdp.studies.executor import CompletedItem, executor_for
from simdp.studies.executor import dask as module
from simdp.studies.executor.dask import DaskExecutor
from simdp.studies.store import Store
from simdp.studies.sweep import sweep

pytest.importorskip("distributed.client")  # tests/distributed is a namespace of that name, too
distributed = pytest.importorskip("distributed")
dask = pytest.importorskip("dask")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
"""Warnings are the library's own, at its end."""


@pytest.fixture(scope="module")
def local():
    """A process that is started again when it dies."""
    options = {"threads_per_worker": 1, "dashboard_address": None, "silence_logs": 60}
    with distributed.LocalCluster(n_workers=1, **options) as local:
        yield local


def half(number):
    if number == 3:
        raise ScenarioError(["three is wrong."])
    return number / 2


def die_once(folder, number):
    mark = folder / "died"
    if number == 4 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_each_item_comes_once_and_what_fails_has_a_reason(local):
    with executor_for(scheduler=local.scheduler_address) as cluster:
        assert cluster.workers == 1
        found = list(cluster.each(half, range(30)))
        assert list(cluster.each(half, [])) == []
    assert sorted(number for number, _ in found) == list(range(30))
    assert dict(found)[3].problems == ["three is wrong."]
    assert dict(found)[4] == CompletedItem(2.0)


def test_a_worker_that_dies_loses_nothing(local, tmp_path):
    with executor_for(scheduler=local.scheduler_address) as cluster:
        found = list(cluster.each(partial(die_once, tmp_path), range(12)))
    assert sorted(found) == [(number, CompletedItem(number)) for number in range(12)]


@pytest.mark.long
def test_a_sweep_is_the_serial_one_although_workers_are_killed(local, tmp_path):
    raw = {
        "cluster": {"world_size": 2, "device": "t4-16gb", "link": "pcie3-x16"},
        "workload": {
            "model": {"kind": "mlp", "widths": [8, 16, 4]},
            "dataset": {"kind": "regression", "num_samples": 64},
            "microbatch": 4,
            "steps": 3,
        },
        "sweep": {"cluster.world_size": [1, 2, 3], "workload.grad_accum": [1, 2, 3, 4]},
    }
    scenario, killed = checked(raw, tmp_path), []

    def kill(done, total):
        if done in (3, 8):
            worker = next(iter(local.workers.values()))
            killed.append(os.kill(worker.process.process.pid, signal.SIGKILL))

    address = local.scheduler_address
    with Store(tmp_path) as store:
        found = sweep(scenario, scheduler=address, progress=kill, store=store)
    whole = sweep(scenario)
    assert found.to_json() == whole.to_json()
    assert list(found.points[-1].trace.spans) == list(whole.points[-1].trace.spans)
    assert len(killed) == 2
    with Store(tmp_path, go_on=True) as store:
        assert sweep(scenario, store=store).to_json() == whole.to_json()
        assert store.num_found == 12


def test_a_worker_of_another_version_says_so(local, monkeypatch):
    monkeypatch.setattr(module, "__version__", "9.9")
    with executor_for(scheduler=local.scheduler_address) as cluster:
        ((_, failed),) = cluster.each(half, [1])
    assert failed.reason.startswith("a worker has simdp ")
    assert "not 9.9" in failed.reason


def refused(address):
    with pytest.raises(ScenarioError) as error:
        executor_for(scheduler=address)
    (line,) = error.value.problems
    assert line.startswith(f"--scheduler {address}: ")
    return line


@for_each("address", ["tcp://127.0.0.1:1", "nonsense", "tcp://", "ftp://x:1"])
def test_a_scheduler_that_is_not_there_is_said_in_a_line(address, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.3)
    assert "no scheduler answers there" in refused(address)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nonsense"])
def test_a_client_that_cannot_begin_leaves_its_finalizer_nothing_to_close(monkeypatch, address):
    monkeypatch.setattr(module, "PATIENCE", 0.3)
    left = []
    monkeypatch.setattr(distributed.Client, "__del__", lambda client: left.append(client.status))
    refused(address)
    gc.collect()
    assert {*left} == {"closed"}  # whoever else was to be collected, too


def test_what_is_no_scheduler_is_said_in_a_line():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_answer, args=(server,), daemon=True).start()
        assert "no scheduler answers there" in refused(f"tcp://127.0.0.1:{server.getsockname()[1]}")


def _answer(server):
    connection, _ = server.accept()
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    connection.close()


def test_a_scheduler_without_workers_says_what_to_start(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 1.0)
    options = {"n_workers": 0, "dashboard_address": None, "silence_logs": 60}
    with distributed.LocalCluster(**options) as empty:
        assert "has no workers; start some" in refused(empty.scheduler_address)


@pytest.mark.long
def test_a_scheduler_that_loses_its_workers_for_good_says_how_to_go_on(monkeypatch):
    monkeypatch.setattr(module, "LOOK", 0.3)
    monkeypatch.setattr(module, "LOOKS", 2)
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    soon = dask.config.set({"distributed.comm.timeouts.connect": "1s"})
    with soon, distributed.LocalCluster(**options, silence_logs=60) as local:
        cluster = DaskExecutor(local.scheduler_address)
        with cluster, pytest.raises(ScenarioError, match="has lost its workers; finished points"):
            for _ in cluster.each(half, range(100)):
                local.scale(0)


@pytest.mark.long
def test_a_scheduler_that_goes_away_says_how_to_go_on(monkeypatch):
    monkeypatch.setattr(module, "LOOK", 0.3)
    monkeypatch.setattr(module, "PATIENCE", 1.0)
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    soon = dask.config.set({"distributed.comm.timeouts.connect": "1s"})
    with soon, distributed.LocalCluster(**options, silence_logs=60) as local:
        cluster = DaskExecutor(local.scheduler_address)
        with (
            cluster,
            pytest.raises(ScenarioError, match="went away; finished points are kept") as error,
        ):
            for _ in cluster.each(half, range(100)):
                local.loop.add_callback(local.scheduler.close)
    assert error.value.problems[0].endswith("with --continue.")
