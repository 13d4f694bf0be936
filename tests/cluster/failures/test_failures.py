"""All failures: events in rising time, the same for the same stream, of nodes that are there."""

from itertools import pairwise

import numpy as np
import pytest
from for_each import for_each, for_some
from hypothesis import given
from hypothesis import strategies as st
from processes import EXAMPLES, HAZARDS, HOUR, before, drawn, failures, folder, refusal

from simdp.cluster import Cluster
from simdp.cluster.failures import FAILURES

every_kind = pytest.mark.parametrize("kind", list(FAILURES))
every_hazard = pytest.mark.parametrize("kind", HAZARDS)


def test_every_kind_has_an_example():
    assert set(EXAMPLES) == set(FAILURES)


@every_kind
def test_the_first_events_are_the_same_however_many_are_read(kind, tmp_path):
    process = failures(kind, folder(tmp_path))
    many = drawn(process, 500)
    assert drawn(process, 500) == many
    assert drawn(process, 2) == many[:2]


@every_kind
def test_runs_differ_where_anything_is_drawn(kind, tmp_path):
    process = failures(kind, folder(tmp_path))
    assert (drawn(process, 3) == drawn(process, 3, run=1)) == (kind in ("maintenance", "trace"))


@every_kind
def test_failures_are_written_as_they_were_given(kind, tmp_path):
    process = failures(kind, folder(tmp_path))
    written = process.model_dump(mode="json", exclude_none=True)
    again = failures(kind, tmp_path, **{key: written[key] for key in written if key != "kind"})
    assert again == process
    assert drawn(again, 50) == drawn(process, 50)


@every_kind
@for_each(("num_nodes", "devices"), [(1, 1), (1, 8), (5, 2), (300, 8)])
def test_events_rise_in_time_and_hit_nodes_that_are_there(kind, num_nodes, devices, tmp_path):
    events = drawn(failures(kind, folder(tmp_path)), 300, num_nodes, devices)
    assert events[0].time >= 0
    for event, following in pairwise(events):
        assert event.time <= following.time
    for event in events:
        assert list(event.nodes) == sorted(set(event.nodes))
        assert all(0 <= node < num_nodes for node in event.nodes)
        assert all(type(node) is int for node in event.nodes)
        assert event.effect in ("fail", "hang", "leave", "join", "drain")
        assert type(event.time) is float
        assert event.repair >= 0


@given(
    kind=st.sampled_from(HAZARDS),
    per=st.sampled_from(["device", "node", "switch", "cluster"]),
    spread=st.sampled_from([0.0, 0.3, 2.0, 10.0]),
    num_nodes=st.integers(1, 40),
    devices=st.integers(1, 9),
    size=st.integers(1, 50),
)
def test_every_unit_hits_its_own_nodes(kind, per, spread, num_nodes, devices, size):
    sizes = {"nodes_per_switch": size} if per == "switch" else {}
    process = failures(kind, per=per, spread=spread, repair="1 h", **sizes)
    events = drawn(process, 130, num_nodes, devices)
    assert all(a.time <= b.time for a, b in pairwise(events))
    assert {event.repair for event in events} == {HOUR}
    assert {event.cause for event in events} == {"node failure"} if per == "cluster" else True
    width = size if per == "switch" else 1
    for event in events:
        first = event.nodes[0]
        assert 0 <= first < num_nodes
        assert first % width == 0
        assert event.nodes == tuple(range(first, min(first + width, num_nodes)))


# What all hazards have ---------------------------------------------------------------------------


@pytest.mark.slow
@every_hazard
@for_some("num_nodes", [1, 7, 500], 3, first=1)
@for_each("spread", [0, 1])
def test_the_mean_rate_is_that_of_the_units(kind, num_nodes, spread):
    """Also in the first hours, since units are found somewhere between two failures."""
    process = failures(kind, spread=spread)
    assert process.job_rate(num_nodes, 8) == pytest.approx(num_nodes / process.mean_gap())
    end, runs = 20 / process.job_rate(num_nodes, 8), 1500 if num_nodes == 1 else 400
    times = np.concatenate([before(process, end, num_nodes, run) for run in range(runs)])
    early = (times < end / 2).sum()
    np.testing.assert_allclose([early, len(times) - early], 10 * runs, rtol=0.08)


@pytest.mark.slow
@every_hazard
@for_each("per", ["node", "cluster"])
def test_lemons_fail_more_often_than_the_others_and_the_mean_stays(kind, per):
    """A gamma distribution whose coefficient of variation is 2 has half of it in 7.5 %."""
    process = failures(kind, per=per, spread=2)
    events = drawn(process, 40_000, 2000)
    counts = np.sort(np.bincount([event.nodes[0] for event in events], minlength=2000))
    assert counts[-150:].sum() / 40_000 == pytest.approx(0.5, abs=0.04)
    rate = process.job_rate(2000, 8)
    assert events[-1].time * rate == pytest.approx(40_000, rel=0.15 if per == "node" else 0.03)


@every_hazard
def test_who_is_a_lemon_differs_from_run_to_run(kind):
    process = failures(kind, spread=3)
    worst = {
        int(np.bincount([event.nodes[0] for event in drawn(process, 500, 50, run=run)]).argmax())
        for run in range(6)
    }
    assert len(worst) > 3


@every_hazard
def test_a_share_of_failures_is_silent_and_the_rest_stays(kind):
    alike, some = (drawn(failures(kind, hang=share), 5000) for share in ("0 %", "20 %"))
    assert {event.effect for event in alike} == {"fail"}
    assert np.mean([event.effect == "hang" for event in some]) == pytest.approx(0.2, abs=0.02)
    assert [event._replace(effect="fail") for event in some] == alike


@every_hazard
def test_a_failure_of_the_job_hits_no_node(kind):
    assert {event.nodes for event in drawn(failures(kind, per="job"), 50)} == {()}


@every_hazard
def test_a_failure_of_a_device_hits_its_node(kind):
    process = failures(kind, per="device")
    assert process.job_rate(8, 4) == pytest.approx(32 / process.mean_gap())
    assert {event.nodes for event in drawn(process, 300, 8, 4)} == {(node,) for node in range(8)}


@every_hazard
def test_a_failure_of_a_switch_hits_all_its_nodes(kind):
    process = failures(kind, per="switch", nodes_per_switch=3)
    assert {event.nodes for event in drawn(process, 50)} == {(0, 1, 2), (3, 4, 5), (6, 7)}


@every_hazard
def test_a_cluster_fails_as_often_whatever_its_size_and_loses_any_node(kind):
    process = failures(kind, per="cluster")
    small, large = (drawn(process, 300, num_nodes) for num_nodes in (2, 64))
    assert [event.time for event in small] == [event.time for event in large]
    assert {event.nodes for event in small} == {(0,), (1,)}
    assert len({event.nodes for event in large}) > 50


@for_each(
    ("options", "cause"),
    [
        ({}, "node failure"),
        ({"per": "device"}, "device failure"),
        ({"per": "switch", "nodes_per_switch": 2}, "switch failure"),
        ({"per": "cluster"}, "node failure"),
        ({"per": "job"}, "job failure"),
        ({"per": "job", "cause": "users' errors"}, "users' errors"),
    ],
)
def test_events_are_called_by_what_fails(options, cause):
    assert {event.cause for event in drawn(failures("exponential", **options), 3)} == {cause}


@every_hazard
@for_each(
    ("options", "line"),
    [
        ({"per": "rank"}, "per: 'rank' is not allowed; known: {PER}."),
        ({"per": "switch"}, "per: switch needs the number of its nodes; add nodes_per_switch: 16."),
        (
            {"nodes_per_switch": 16},
            "nodes_per_switch is not used with per: node; leave it out, or write per: switch.",
        ),
        (
            {"per": "switch", "nodes_per_switch": 0},
            "nodes_per_switch: 0 is out of range; it must be >= 1.",
        ),
        (
            {"per": "job", "repair": "1 h"},
            "repair is not used with per: job, which loses no node; leave it out, or write "
            "per: cluster.",
        ),
        (
            {"per": "job", "spread": 1},
            "spread is not used with per: job, which is a single unit; leave it out.",
        ),
        ({"spread": -1}, "spread: -1 is out of range; it must be >= 0.0."),
        ({"spread": 11}, "spread: 11 is out of range; it must be <= 10.0."),
        ({"hang": 0.1}, 'hang: 0.1 is not a share of 0 % or more; write for example "2 %".'),
        ({"hang": "101 %"}, "hang: 101 % of all failures is too much; write 100 % or less."),
        ({"repair": 60}, 'repair: 60 has no unit; write "60 s", "60 ms" or "60 us".'),
        ({"cause": 1}, "cause: 1 is not a text."),
    ],
)
def test_a_wrong_hazard_is_refused(kind, options, line):
    known = "'device', 'node', 'switch', 'cluster' or 'job'"
    assert refusal(kind, **options) == line.replace("{PER}", known)


def test_an_unknown_kind_is_refused():
    raw = {"world_size": 1, "device": "t4-16gb", "failures": [{"kind": "exponental"}]}
    with pytest.raises(ValueError, match=r"unknown failure 'exponental'\. Did you mean "):
        Cluster.model_validate(raw)
