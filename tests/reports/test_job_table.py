"""Tables of a job: one in rows, several side by side, no number cut off."""

import io
from dataclasses import replace

from jobs_drawn import HOUR, job, one_job, three_jobs
from rich.console import Console
from small_scenario import CLUSTER, WORKLOAD

from simdp.reports.figures import long_time
from simdp.reports.job_table import table
from simdp.results.job import Spread
from simdp.studies import job as study


def text(study):
    stream = io.StringIO()
    Console(file=stream, width=80).print(table(study), soft_wrap=True)
    return stream.getvalue()


def test_one_job_says_when_it_is_done_where_time_goes_and_what_was_assumed():
    found = text(one_job(chance_to_finish=0.25, until_s=20.5 * HOUR))
    for words in (
        "small: 20 runs",
        "done after  20.95 h  20.95 h",
        "lost work   1.5 h    7.2 %",
        "90 % of the runs are done after 20 h - 21.9 h",
        "done within 20.5 h: 25.0 % of the runs",
        "1 failures in a run, one every 21 h",
        "assumed: 10,000 steps of 6.5 s on 8 nodes",
        "(100 steps)",
        "20 s behind it",
        "restart with",
    ):
        assert " ".join(words.split()) in " ".join(found.split()), words
    assert "waiting for data" not in found
    assert "USD" not in found


def test_money_and_energy_have_rows_where_they_are_known():
    spread = Spread(12345.6, 1.0, 2.0, 3.0)
    found = text(one_job(cost_usd=spread, energy_kwh=spread))
    assert "USD" in found
    assert "kWh" in found
    assert "USD: by list prices of 2026-05" in found
    assert found.count("12,346") == 2


def test_a_sweep_has_a_row_per_point():
    found = text(three_jobs())
    assert "small: 20 runs of each point" in found
    rows = [line for line in found.splitlines() if line.strip().startswith(("10 min", "daly"))]
    assert "21.95" in rows[0]
    assert "50.0 %" in found
    assert "in time" in found
    assert max(map(len, found.splitlines())) <= 80


def test_long_times_have_units_that_suit():
    assert [long_time(t) for t in (None, 1.0, 100.0, 6000.0, 54 * 86400.0)] == [
        "-",
        "1 s",
        "1.667 min",
        "1.667 h",
        "54 d",
    ]


def test_a_winner_is_named_only_beyond_the_noise():
    found = " ".join(text(three_jobs()).split())
    assert "every: daly is done first, after 20.95 h" in found
    study = three_jobs()
    near = [
        job({"checkpoint.every": value}, shift) for value, shift in (("young", 0.01), ("daly", 0.0))
    ]
    study.points[:2] = near
    found = " ".join(text(study).split())
    assert "every: daly (20.95 h) and every: young (20.96 h): no difference beyond" in found
    assert "standard error of a mean 7.937 min" in found
    assert "is done first" not in found
    assert "All others take longer." in found


def test_of_one_run_each_nothing_is_claimed():
    study = three_jobs()
    study.points[:] = [replace(one, runs=1, finishes=one.finishes[:1]) for one in study.points]
    assert "One run of each point does not show how much is chance" in text(study)


def test_what_a_checkpoint_guards_against_is_said_where_it_is_not_every_failure():
    given = one_job().points[0].assumed
    for guarded, words in (
        (20 * HOUR, None),
        (
            40 * HOUR,
            "with restart a checkpoint is loaded from storage once in " + long_time(40 * HOUR),
        ),
        (None, "no failure loads a checkpoint from storage"),
    ):
        found = text(one_job(assumed={**given, "guarded_mttf_s": guarded}))
        assert ("from storage" in found) == (words is not None)
        assert words is None or words in " ".join(found.split())


def test_first_comes_what_a_scenario_without_events_lacks(load):
    def words(cluster, **other):
        keys = {"cluster": cluster, "workload": {**WORKLOAD, "steps": 20}, "numerics": False}
        return " ".join(text(study.job(load(**keys, **other), runs=2)).split())

    plain = words(CLUSTER)
    assert plain.startswith("no failures and no target: the job is what run simulates, 20 steps, ")
    assert "write cluster.failures, such as [{kind: exponential, mtbf: 1000 h}], and " in plain
    pause = {"kind": "pause", "rank": 0, "every": "10 min", "duration": "36 s"}
    rare = {"failures": [{"kind": "exponential", "mtbf": "1000 h"}], "stragglers": [pause]}
    none = words({**CLUSTER, **rare})
    assert none.startswith("no failure occurs in 20 steps, ")
    assert "9 steps are too short for the pause of rank 0 every 600 s" in none
    assert ": 2 runs" in words(CLUSTER, target={"samples": 1e6})[:20]
