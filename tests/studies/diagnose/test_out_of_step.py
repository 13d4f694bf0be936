"""Collectives of profiler traces that ranks disagree on."""

from for_each import for_each
from trace_maker import RankMaker

from simdp.studies.diagnose.meetings import matched
from simdp.studies.diagnose.out_of_step import mismatches
from simdp.studies.diagnose.timeline import timeline

SIZES = (100, 200, 300, 400, 500)


def found(odd, num_ranks=3, remark=None):
    """What ranks disagree on, where rank 1 does in step 3 what ``odd`` makes of its calls."""
    lines = []
    for rank in range(num_ranks):
        maker = RankMaker(rank, num_ranks)
        for step in range(5):
            maker.step(step + 1, float(step), step + 1.0)
            calls = [("all_reduce", step + 0.1 * i, size, {}) for i, size in enumerate(SIZES)]
            if (rank, step) == (1, 2):
                calls = odd(calls)
            for name, at, size, more in calls:
                maker.call(name, at + 0.02, at + 0.09, size, **more)
        lines.append(timeline(maker.trace(), rank))
    return mismatches(lines, matched(lines))


def test_ranks_that_agree_have_no_rows():
    assert found(lambda calls: calls) == []


@for_each(
    ("change", "state"),
    [
        (lambda c: ("broadcast", *c[1:]), "COLLECTIVE_TYPE_MISMATCH"),
        (lambda c: (*c[:2], 7, c[3]), "SIZE_OR_SYNTAX_MISMATCH"),
        (lambda c: (*c[:3], {"dtype": "float16"}), "COLLECTIVE_DTYPE_MISMATCH"),
    ],
)
def test_another_call_is_named_with_its_rank(change, state):
    (row,) = found(lambda calls: [*calls[:2], change(calls[2]), *calls[3:]])
    assert (row.state, row.culprit_ranks, row.missing_ranks) == (state, (1,), ())


@for_each("num_ranks", [2, 3])
def test_a_call_that_a_rank_leaves_out_is_missing_there(num_ranks):
    rows = found(lambda calls: [calls[0], *calls[2:]], num_ranks)
    assert (rows[0].missing_ranks, rows[0].sequence) == ((1,), 1)
    assert "rank 1 calls 4 in step 3, where others call 5" in rows[0].detail


def test_uneven_all_to_alls_agree():
    assert found(lambda calls: calls, 2) == []
    lines = []
    for rank in range(2):
        maker = RankMaker(rank, 2)
        for i in range(3):
            maker.call("all_to_all", i + 0.1, i + 0.2, (10, 2)[rank], out=(4, 8)[rank])
        lines.append(timeline(maker.trace(), rank))
    assert mismatches(lines, matched(lines)) == []


def test_uneven_all_to_alls_of_some_of_the_ranks_are_not_judged():
    lines = []
    for rank in range(2):
        maker = RankMaker(rank, 4)
        for i in range(3):
            maker.call("all_to_all", i + 0.1, i + 0.2, (10, 2)[rank], out=(40, 80)[rank])
        lines.append(timeline(maker.trace(), rank))
    assert mismatches(lines, matched(lines)) == []
