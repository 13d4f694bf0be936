"""A remedy's gain is that of the job itself with the same change."""

import copy
from typing import get_args

import pytest

from simdp.errors import ScenarioError
from simdp.results.diagnosis import Cause
from simdp.studies.replay.remedies import remedies
from simdp.studies.replay.scenario import replay_of
from tests.for_each import for_each
from tests.studies.replay.traced import scenario, step_time, traces_of, with_keys


def job(strategy="ddp", **cluster):
    raw = scenario("hkbu-10gbe", strategy=strategy)
    return with_keys(raw, **cluster)


def best(found, words):
    """The remedy that a word names."""
    return next(one for one in found if words in one.change)


@pytest.mark.slow
def test_of_exposed_communication(tmp_path):
    raw = job()
    found = remedies(traces_of(raw, tmp_path), "exposed_communication", "hkbu-10gbe")
    base = step_time(raw)
    exact = [number for number, one in enumerate(found) if "bucket" in one.change]
    assert exact == [0]
    rest = [one.step_time_s for one in found[1:]]
    assert rest == sorted(rest)
    assert all(one.step_time_s < base for one in found)
    hook = step_time(raw | {"strategy": {"kind": "ddp", "comm_hook": "bf16"}})
    assert best(found, "bf16_compress").step_time_s == pytest.approx(hook, rel=0.02)
    more = copy.deepcopy(raw)
    more["workload"]["grad_accum"] = 4
    per_step = step_time(more) / 4
    assert best(found, "over 4 micro-batches").step_time_s == pytest.approx(per_step, rel=0.02)


@pytest.mark.long
@pytest.mark.slow
def test_one_exchange_a_step_comes_first_where_each_micro_step_has_one(tmp_path):
    raw = job({"kind": "ddp", "no_sync": False})
    raw["workload"]["grad_accum"] = 4
    first, *_ = remedies(traces_of(raw, tmp_path), "exposed_communication", "hkbu-10gbe")
    assert "strategy.no_sync: true" in first.change
    once = step_time(raw | {"strategy": "ddp"})
    assert first.step_time_s == pytest.approx(once, rel=0.02)
    assert once < 0.9 * step_time(raw)


@pytest.mark.slow
@for_each(
    "straggler",
    [
        {"kind": "slow_rank", "rank": 1, "factor": 1.5},
        {"kind": "pause", "rank": 1, "every": 1, "duration": "10 ms"},
    ],
)
def test_of_a_straggler(tmp_path, straggler):
    raw = job(stragglers=[straggler])
    traces = traces_of(raw, tmp_path)
    found = remedies(traces, "straggler", "hkbu-10gbe")
    assert best(found, "rank 1 replaced").step_time_s == pytest.approx(
        step_time(job(stragglers=[])), rel=0.02
    )
    own = replay_of(traces, machine="hkbu-10gbe")
    assert own.simulate().metrics["step_time_s"] == pytest.approx(step_time(raw), rel=0.01)


@pytest.mark.slow
def test_of_a_slow_link(tmp_path):
    links = {
        "world_size": 2,
        "device": "v100-sxm2-16gb",
        "topology": "switch",
        "link": {"alpha": "5 us", "bandwidth": "500 MB/s"},
    }
    raw = scenario() | {"cluster": links, "collectives": {"cost": "links"}}
    found = remedies(traces_of(raw, tmp_path), "slow_link")
    faster = raw | {"cluster": {**links, "link": {"alpha": "5 us", "bandwidth": "2 GB/s"}}}
    # A bucket that queued behind another may have been launched any time before.
    assert best(found, "4 times as fast").step_time_s == pytest.approx(step_time(faster), rel=0.05)


@pytest.mark.slow
def test_of_stalls_of_input(tmp_path):
    load = {"workers": 1, "per_sample": "4 ms"}
    raw = scenario(input=load, steps=8)
    found = remedies(traces_of(raw, tmp_path, by_rank=True), "input_stall", "dgx-a100")
    more = scenario(input={"workers": 2, "per_sample": "4 ms"}, steps=8)
    assert best(found, "the loader's workers").step_time_s == pytest.approx(
        step_time(more), rel=0.03
    )


@pytest.mark.long
@pytest.mark.slow
def test_what_does_not_help_is_left_out(tmp_path):
    traces = traces_of(scenario(), tmp_path)
    base = replay_of(traces, machine="dgx-a100").simulate().metrics["step_time_s"]
    for cause in get_args(Cause):
        found = remedies(traces, cause, "dgx-a100")
        assert all(one.step_time_s < base for one in found), cause
    assert not remedies(traces, "input_stall", "dgx-a100")
    assert not remedies(traces, "desynchronised", "dgx-a100")


def test_an_unknown_cause_is_refused():
    with pytest.raises(ScenarioError, match=r"unknown cause 'laziness'.*launch_bound"):
        remedies([], "laziness")
