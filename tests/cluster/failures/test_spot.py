"""Spot instances: nodes go and come back, by a trace or by chance."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from processes import HOUR, drawn, failures, folder, refusal

SHIPPED = Path(__file__).parents[3] / "scenarios" / "data"
BY_TRACE = {"lifetime": None, "mean_downtime": None, "path": "alive.csv"}


def alive(events, num_nodes):
    """When how many nodes are alive; nobody goes who is away, or comes who is there."""
    there, found = set(range(num_nodes)), [(0.0, num_nodes)]
    for event in events:
        nodes = set(event.nodes)
        assert nodes
        assert nodes <= there if event.effect == "leave" else nodes.isdisjoint(there)
        there = there - nodes if event.effect == "leave" else there | nodes
        found.append((event.time, len(there)))
    return found


def mean_alive(found):
    return sum(n * (end - time) for (time, n), (end, _) in pairwise(found)) / found[-1][0]


# By a trace --------------------------------------------------------------------------------------


@for_each(
    ("num_nodes", "counts"),
    [
        (8, [(0, 8), (100, 5), (300, 7), (400, 8), (500, 5), (700, 7)]),
        (10, [(0, 10), (0, 8), (100, 5), (300, 7), (400, 8), (500, 5)]),
        (7, [(0, 7), (100, 5), (300, 7), (500, 5), (700, 7), (900, 5)]),
    ],
)
def test_as_many_are_alive_as_the_trace_says_again_and_again(num_nodes, counts, tmp_path):
    process = failures("spot", folder(tmp_path), **BY_TRACE)
    assert alive(drawn(process, len(counts) - 1, num_nodes), num_nodes) == counts


def test_a_trace_may_end(tmp_path):
    process = failures("spot", folder(tmp_path), **BY_TRACE, repeat=False)
    assert alive(drawn(process, 100), 8) == [(0, 8), (100, 5), (300, 7)]


@for_each("repeat", [True, False])
def test_a_trace_in_which_nobody_goes_has_no_events(repeat, tmp_path):
    process = failures("spot", folder(tmp_path), **BY_TRACE, repeat=repeat)
    assert drawn(process, 10, num_nodes=5) == []


def test_runs_may_begin_anywhere_in_a_trace(tmp_path):
    process = failures("spot", folder(tmp_path), **BY_TRACE, start="random")
    firsts = []
    for run in range(300):
        found = alive(drawn(process, 4, run=run), 8)
        assert {found[i][1] for i in (1, 2, 3)} <= {5, 7, 8}
        firsts.append(found[1])
    at_once = [count for time, count in firsts if time == 0]
    assert len(at_once) / 300 == pytest.approx(3 / 4, abs=0.08)  # where fewer than 8 are alive
    assert at_once.count(5) / 300 == pytest.approx(1 / 2, abs=0.08)


def test_a_change_may_have_a_line_before_and_one_after_it(tmp_path):
    """As Bamboo's traces have, which begin on a clock of their own."""
    text = "time_s,alive\n50,8\n150,8\n150,5\n350,5\n350,7\n450,7\n"
    process = failures("spot", folder(tmp_path, alive=text), **BY_TRACE)
    assert drawn(process, 20) == drawn(failures("spot", folder(tmp_path), **BY_TRACE), 20)


def test_those_that_went_first_come_back_first(tmp_path):
    text = "time_s,alive\n0,3\n1,2\n2,1\n3,2\n4,3\n5,3\n"
    gone_1, gone_2, back_1, back_2 = drawn(
        failures("spot", folder(tmp_path, alive=text), **BY_TRACE), 4, num_nodes=3
    )
    assert (gone_1.nodes, gone_2.nodes) == (back_1.nodes, back_2.nodes)
    assert {event.cause for event in (gone_1, back_1)} == {"spot"}


def test_the_shipped_trace_has_the_statistics_of_the_published_one():
    """Bamboo, g4dn.xlarge, us-east-1c: 24.5 h, 12 wanted, 8.2 alive, 85 lost in 35 events."""
    process = failures(
        "spot", SHIPPED, lifetime=None, mean_downtime=None, path="spot_12_nodes.csv", repeat=False
    )
    events = drawn(process, 1000, num_nodes=12)
    lost = [len(event.nodes) for event in events if event.effect == "leave"]
    assert (len(lost), sum(lost)) == (35, 85)
    counts = [*alive(events, 12), (24.5 * HOUR, 0)]
    assert mean_alive(counts) == pytest.approx(8.2, abs=0.005)
    assert process._counts[-1][0] == 24.5 * HOUR


# By chance ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 2.43, 30])
@pytest.mark.parametrize("num_nodes", [1, 12])
def test_nodes_live_and_stay_away_as_long_as_is_given(group, num_nodes):
    process = failures("spot", lifetime="3 h", mean_downtime="1 h", group=group)
    events = drawn(process, 20_000, num_nodes)
    counts = alive(events, num_nodes)
    hours = counts[-1][0] / HOUR
    lost = sum(len(event.nodes) for event in events if event.effect == "leave")
    assert mean_alive(counts) / num_nodes == pytest.approx(0.75, rel=0.06)
    assert hours * mean_alive(counts) / lost == pytest.approx(3, rel=0.06)


@pytest.mark.slow
def test_nodes_go_in_groups():
    """The statistics of the shipped trace: groups of 85 / 35, where so many are there."""
    process = failures("spot", lifetime="20 h", mean_downtime="1 min", group=85 / 35)
    lost = [len(e.nodes) for e in drawn(process, 20_000, 500) if e.effect == "leave"]
    assert np.mean(lost) == pytest.approx(85 / 35, rel=0.03)
    assert max(lost) > 8


@given(
    num_nodes=st.integers(1, 30),
    group=st.floats(1, 1e6),
    lifetime=st.floats(1e-3, 1e6),
    mean_downtime=st.floats(1e-3, 1e6),
)
def test_nobody_goes_twice(num_nodes, group, lifetime, mean_downtime):
    process = failures(
        "spot", lifetime=f"{lifetime} h", mean_downtime=f"{mean_downtime} h", group=group
    )
    counts = alive(drawn(process, 150, num_nodes), num_nodes)
    assert all(0 <= n <= num_nodes for _, n in counts)
    assert all(a <= b for (a, _), (b, _) in pairwise(counts))


# What is refused ---------------------------------------------------------------------------------


@for_each(
    ("options", "line"),
    [
        (
            {"lifetime": None},
            "give either path, a trace of how many are alive, or lifetime and mean_downtime.",
        ),
        (
            {"mean_downtime": None},
            "give either path, a trace of how many are alive, or lifetime and mean_downtime.",
        ),
        ({"repeat": False}, "repeat and start need a trace; leave them out, or give path."),
        ({"start": "random"}, "repeat and start need a trace; leave them out, or give path."),
        (
            {"path": "alive.csv"},
            "lifetime, mean_downtime and group are not used with path; leave them out, or it.",
        ),
        (
            {**BY_TRACE, "group": 2},
            "lifetime, mean_downtime and group are not used with path; leave them out, or it.",
        ),
        (
            {**BY_TRACE, "repeat": False, "start": "random"},
            "start: random needs a trace that goes on; write repeat: true.",
        ),
        (
            {**BY_TRACE, "start": "end"},
            "start: 'end' is not allowed; known: 'beginning' or 'random'.",
        ),
        ({"lifetime": 3}, 'lifetime: 3 has no unit; write "3 s", "3 ms" or "3 us".'),
        ({"group": 0.5}, "group: 0.5 is out of range; it must be >= 1.0."),
    ],
)
def test_a_wrong_spot_is_refused(options, line, tmp_path):
    assert refusal("spot", folder(tmp_path), **options) == line


@for_each(
    ("rows", "line"),
    [
        (
            ["0,8", "10,7", "5,6"],
            ":4: 5 s is before 10 s of the line before; put lines in rising time.",
        ),
        (["0,7.5", "9,8"], ":2: alive 7.5 is not a whole number."),
        (["0,-1"], ":2: alive -1 is out of range; it must be >= 0 and finite."),
        (["0,8,1"], ":2: has 3 cells for 2 columns."),
    ],
)
def test_a_wrong_trace_of_counts_is_refused(rows, line, tmp_path):
    path = folder(tmp_path, alive="time_s,alive\n" + "\n".join(rows) + "\n")
    assert refusal("spot", path, **BY_TRACE) == f"{tmp_path}/alive.csv{line}"


def test_a_trace_of_one_count_does_not_end(tmp_path):
    path = folder(tmp_path, alive="time_s,alive\n0,8\n")
    assert refusal("spot", path, **BY_TRACE) == (
        "path: alive.csv has one instant, which never ends; add when it does."
    )
    assert drawn(failures("spot", path, **BY_TRACE, repeat=False), 5) == []
