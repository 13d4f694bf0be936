"""Ensembles of a job: the same for any number of workers, and they go on where they stopped."""

import json
import sqlite3
import zlib
from functools import cache

import numpy as np
import pytest
from small_scenario import CLUSTER

import simdp
from simdp.results.job import BADPUT
from simdp.studies import job as study
from simdp.studies.store import FILE, Store

pytestmark = pytest.mark.slow

JOB = {
    "cluster": {
        **CLUSTER,
        "devices_per_node": 2,
        "topology": "switch",
        "inter_node": {"topology": "switch", "link": "ib-hdr"},
        "failures": [{"kind": "exponential", "per": "cluster", "mtbf": "1 h"}],
    },
    "workload": {
        "model": {"kind": "parameters", "num_params": 1000},
        "microbatch": 1,
        "steps": 10_000,
        "compute": {"kind": "measured", "points": [{"microbatch": 1, "step_time": "2 s"}]},
    },
    "checkpoint": {"every": "10 min", "write": "20 s"},
    "recovery": {"detection": "30 s", "restart": "5 min"},
}


@pytest.fixture
def job(load):
    @cache
    def job(**keys):
        return study.job(load(**JOB), **{"runs": 60, **keys})

    return job


def test_the_parts_add_up_and_spreads_are_of_all_runs(job):
    (found,) = job(until=6.5 * 3600).points
    assert found.runs == len(found.finishes) == 60
    times = np.array(found.finishes)
    assert found.finish_s.mean == times.mean()
    assert found.finish_s.p90 == np.quantile(times, 0.9)
    assert found.finish_interval_s == tuple(np.quantile(times, [0.05, 0.95]))
    assert found.chance_to_finish == (times <= 6.5 * 3600).mean()
    assert 0 < found.chance_to_finish < 1
    productive = times.mean() - sum(found.badput_s.values())
    assert productive == pytest.approx(10_000 * found.assumed["step_s"], rel=1e-9)
    assert list(found.badput_s) == list(BADPUT)
    assert found.mttf_s == pytest.approx(times.sum() / (60 * found.num_failures))
    assert found.mttf_s == pytest.approx(3600, rel=0.1)
    assert found.cost_usd.p99 > found.cost_usd.p50 > 0  # by the list price of the device


def test_the_document_has_the_fields_of_the_contract(job):
    document = json.loads(job(runs=3).to_json())
    fields = "runs goodput ettr finish_s cost_usd energy_kwh num_failures mttf_s badput_s"
    assert {*fields.split(), "chance_to_finish"} <= set(document)
    assert list(document["finish_s"]) == ["mean", "p50", "p90", "p99"]
    assert document["chance_to_finish"] is None
    assert "strip" not in document


@pytest.mark.long
def test_answers_do_not_depend_on_the_number_of_workers(job):
    assert job(workers=2).to_json() == job().to_json()


def test_an_ensemble_goes_on_where_it_was_killed(job, tmp_path):
    class KilledError(Exception):
        pass

    def kill(done, total):
        if done >= 50:
            raise KilledError

    with pytest.raises(KilledError), Store(tmp_path) as store:
        job(progress=kill, store=store)
    with Store(tmp_path, go_on=True) as store:
        assert job(store=store).to_json() == job().to_json()
        assert store.num_found == 2
    with sqlite3.connect(tmp_path / FILE) as connection:  # one is of something else
        wrong = zlib.compress(b'{"value": [[1.0]]}')
        first = "(select min(key) from records)"
        connection.execute(f"update records set value = ? where key = {first}", (wrong,))
    with Store(tmp_path, go_on=True) as store:
        assert job(store=store, workers=2).to_json() == job().to_json()
        assert store.num_found == 2


def test_another_scenario_takes_no_run_of_this_one(job, load, tmp_path):
    store = Store(tmp_path, go_on=True)
    job(store=store)
    other = {**JOB, "recovery": {"restart": "1 min"}}
    found = study.job(load(**other), runs=60, store=store)
    assert store.num_found == 0
    assert found.to_json() == study.job(load(**other), runs=60).to_json()


def test_progress_counts_the_runs_of_all_points(load):
    seen = []
    sweep = {"checkpoint.every": ["5 min", "young"]}
    study.job(load(**JOB, sweep=sweep), runs=30, progress=lambda *of: seen.append(of))
    assert seen == [(25, 60), (30, 60), (55, 60), (60, 60)]


def test_every_point_of_a_sweep_is_a_job(load):
    sweep = {"checkpoint.every": ["5 min", "young", "daly"]}
    found = study.job(load(**JOB, sweep=sweep), runs=5)
    assert [job.set["checkpoint.every"] for job in found.points] == sweep["checkpoint.every"]
    assert len(json.loads(found.to_json())["points"]) == 3


def test_devices_cost_while_they_are_there_and_rest_while_nothing_is_trained(load):
    power = {"rest": "100 W", "waiting": "200 W", "busy": "600 W", "node": "1 kW"}
    cluster = {**JOB["cluster"], "price": "2 USD/h", "power": power}
    found = study.job(load(**{**JOB, "cluster": cluster}), runs=20).points[0]
    hours = found.finish_s.mean / 3600
    assert found.cost_usd.mean == pytest.approx(4 * 2 * hours)
    trained = (20_000 + found.badput_s["lost_work"]) / 3600
    kwh = 4 * (0.6 * trained + 0.1 * (hours - trained)) + 2 * hours
    assert found.energy_kwh.mean == pytest.approx(kwh, rel=2e-3)
    assert found.energy_between_kwh is None
    left_out = {key: watts for key, watts in power.items() if key != "waiting"}
    cluster = {**JOB["cluster"], "device": "h100-sxm5-80gb", "power": left_out}
    found = study.job(load(**{**JOB, "cluster": cluster}), runs=5).points[0]
    low, high = found.energy_between_kwh
    assert low < found.energy_kwh.mean < high


def test_what_is_no_job_is_refused(load):
    with pytest.raises(ValueError, match="runs and workers must be >= 1"):
        study.job(load(**JOB), runs=0)
    inference = {**JOB["workload"], "mode": "inference"}
    scenario = load(**{**JOB, "workload": inference, "strategy": "single",
                       "cluster": {"world_size": 1, "device": "t4-16gb"}})  # fmt: skip
    with pytest.raises(simdp.ScenarioError, match="a job trains, and inference does not"):
        study.job(scenario)
