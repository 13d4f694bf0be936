"""Traces: events as a file has them, and files that cannot be right."""

from for_each import for_each
from processes import drawn, failures, folder, refusal

from simdp.cluster.failures import FailureEvent, events

HEAD = "time_s,node,effect,repair_s\n"


def test_events_are_those_of_the_file(tmp_path):
    assert drawn(failures("trace", folder(tmp_path)), 10) == [
        FailureEvent(0.0, "fail", "trace", (3,), 100.0),
        FailureEvent(90.0, "hang", "trace", (1, 2), 0.0),
        FailureEvent(200.5, "fail", "trace", (), 0.0),
    ]


def test_two_columns_are_enough_and_a_cause_may_stand_in_a_third(tmp_path):
    short = failures("trace", folder(tmp_path, events="node,time_s\n1,5\n1,7\n"), cause="ours")
    assert drawn(short, 10) == [FailureEvent(t, "fail", "ours", (1,), 0.0) for t in (5.0, 7.0)]
    text = "time_s,node,cause\n5,1,HBM3\n7,1,\n"
    assert [e.cause for e in drawn(failures("trace", folder(tmp_path, events=text)), 10)] == [
        "HBM3",
        "trace",
    ]


def test_nodes_that_a_cluster_lacks_are_passed_over(tmp_path):
    process = failures("trace", folder(tmp_path))
    assert [event.nodes for event in drawn(process, 10, num_nodes=2)] == [(1,), ()]
    assert process.problem_with(4) is None
    assert process.problem_with(3) == (
        "path: events.csv has node 3, which does not exist; nodes are 0 ... 2."
    )


def test_nodes_leave_and_join(tmp_path):
    text = HEAD + "1,0-3,leave,\n2,1-2,join,\n3,1,fail,\n4,0,join,\n"
    found = drawn(failures("trace", folder(tmp_path, events=text)), 10)
    assert [event.effect for event in found] == ["leave", "join", "fail", "join"]


def test_a_trace_does_not_say_how_often_a_job_fails(tmp_path):
    assert failures("trace", folder(tmp_path)).job_rate(8, 8) is None


@for_each(
    ("rows", "line"),
    [
        (["5,1,,", "4.5,2,,"], "3: 4.5 s is before 5 s of line 2; put events in rising time."),
        (
            ["5,0-4,,100", "50,3,,"],
            "3: node 3 is hit at 50 s, but it is away until 105 s by line 2; shorten its repair_s.",
        ),
        (
            ["5,3,,", "5,3,hang,"],
            "3: node 3 is hit at 5 s, but it is hit then by line 2 too; leave one of them out.",
        ),
        (
            ["5,3,leave,", "9,3,,"],
            "3: node 3 is hit at 9 s, but it has left by line 2; let it join before.",
        ),
        (
            ["5,3,leave,", "5,3,join,"],
            "3: node 3 is hit at 5 s, but it is hit then by line 2 too; leave one of them out.",
        ),
        (["5,3,join,"], "2: node 3 joins, but it has not left; let it leave before."),
        (
            ["5,3,,9", "7,3,join,"],
            "3: node 3 joins, but it has not left; let it leave before.",
        ),
        (
            ["5,3,dies,"],
            "2: unknown effect 'dies'; known: fail, hang, leave, join, drain.",
        ),
        (["5,x,,"], "2: node 'x' is not a node; write a number, a range 4-7, or job."),
        (["5,,,"], "2: node '' is not a node; write a number, a range 4-7, or job."),
        (["5,7-4,,"], "2: node '7-4' is not a node; write a number, a range 4-7, or job."),
        (["5,-1,,"], "2: node '-1' is not a node; write a number, a range 4-7, or job."),
        (["5,1048576,,"], "2: node 1048576 is out of range; nodes end at 1048575."),
        (["5,job,leave,"], "2: the job cannot leave; name nodes, or write fail or hang."),
        (
            ["5,job,,10"],
            "2: repair_s is not used of the job, which loses no node; leave it empty.",
        ),
        (
            ["5,1,leave,10"],
            "2: repair_s is not used of nodes that leave; leave it empty.",
        ),
        (["soon,1,,"], "2: time_s 'soon' is not a number."),
        (["-5,1,,"], "2: time_s -5 is out of range; it must be >= 0 and finite."),
        (["5,1,,nan"], "2: repair_s nan is out of range; it must be >= 0 and finite."),
        (["5,1"], "2: has 2 cells for 4 columns."),
    ],
)
def test_a_wrong_trace_is_refused_with_the_line(rows, line, tmp_path):
    path = folder(tmp_path, events=HEAD + "\n".join(rows) + "\n")
    assert refusal("trace", path) == f"{tmp_path}/events.csv:{line}"


@for_each(
    ("text", "line"),
    [
        ("time_s,nodes\n", ":1: unknown column 'nodes'. Did you mean "),
        ("time_s\n1\n", ":1: the column node is missing; given: time_s."),
        (HEAD, ": has no rows below its columns."),
    ],
)
def test_wrong_columns_of_a_trace_are_refused(text, line, tmp_path):
    said = refusal("trace", folder(tmp_path, events=text))
    assert said.startswith(f"{tmp_path}/events.csv{line}")


def test_a_trace_that_hits_no_end_of_nodes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(events, "MAX_HITS", 1000)
    path = folder(tmp_path, events=HEAD + "1,0-899,,\n2,0-99,,\n3,7,,\n")
    assert refusal("trace", path) == (
        f"{tmp_path}/events.csv:4: the events hit more than 1000 nodes in all; give fewer, or "
        "smaller ranges."
    )


def test_a_missing_trace_is_refused(tmp_path):
    assert refusal("trace", tmp_path) == f"{tmp_path}/events.csv: there is no such file."
    assert refusal("trace", path=None) == "path: is required but was not given; add it."
