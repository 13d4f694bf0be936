"""Maintenance: planned, announced, and some nodes at a time."""

from for_each import for_each
from processes import HOUR, drawn, failures, refusal

from simdp.cluster.failures import FailureEvent

WEEK = 168 * HOUR


def test_nodes_come_in_turn():
    events = drawn(failures("maintenance"), 4)
    assert events == [
        FailureEvent(WEEK, "drain", "maintenance", (0, 1, 2), 2 * HOUR),
        FailureEvent(2 * WEEK, "drain", "maintenance", (3, 4, 5), 2 * HOUR),
        FailureEvent(3 * WEEK, "drain", "maintenance", (0, 6, 7), 2 * HOUR),
        FailureEvent(4 * WEEK, "drain", "maintenance", (1, 2, 3), 2 * HOUR),
    ]


@for_each("nodes", [None, 8, 9])
def test_all_nodes_at_once_where_no_fewer_are_wanted(nodes):
    (event,) = drawn(failures("maintenance", nodes=nodes), 1)
    assert event.nodes == tuple(range(8))


def test_what_is_not_announced_is_a_failure():
    planned, sudden = (failures("maintenance", announced=flag) for flag in (True, False))
    assert {event.effect for event in drawn(sudden, 3)} == {"fail"}
    assert planned.job_rate(8, 8) == 0
    assert sudden.job_rate(8, 8) == 1 / WEEK


def test_more_nodes_than_there_are_do_not_suit_a_cluster():
    process = failures("maintenance")
    assert process.problem_with(3) is None
    assert process.problem_with(2) == (
        "nodes: 3 at a time are more than the 2 of the cluster; use 2 or fewer."
    )


@for_each(
    ("options", "line"),
    [
        ({"every": None}, "every: is required but was not given; add it."),
        ({"every": 7}, 'every: 7 has no unit; write "7 s", "7 ms" or "7 us".'),
        ({"duration": "0 s"}, "duration: 0 s is out of range; it must be > 0 s and finite."),
        (
            {"duration": "1 week"},
            "duration 604800 s is not over when the next one begins after 604800 s; make it "
            "shorter.",
        ),
        ({"nodes": 0}, "nodes: 0 is out of range; it must be >= 1."),
        ({"announced": "maybe"}, "announced: 'maybe' is not true or false."),
    ],
)
def test_a_wrong_maintenance_is_refused(options, line):
    assert refusal("maintenance", **options) == line
