"""Collectives that ranks disagree on are found, in traces and in dumps of the flight recorder."""

from dataclasses import replace
from pathlib import Path

import pytest
from for_each import for_each
from trace_maker import RankMaker

from simdp.errors import ScenarioError
from simdp.studies.diagnose.mismatches import (
    RankCall,
    compared,
    diagnose_flight,
    mismatches,
    rank_without_a_call,
    ranks_in_words,
)
from simdp.traces import FlightEntry, FlightRecord, TraceGroup
from simdp.traces.matching import match
from simdp.traces.timeline import timeline

SENT = RankCall("all_reduce", (128,), (128,), ("float32",), "completed")


def others(number=3, **more):
    return dict.fromkeys(range(number), SENT._replace(**more))


@for_each(
    ("change", "state"),
    [
        ({}, "FULLY_MATCHED"),
        ({"name": "broadcast"}, "COLLECTIVE_TYPE_MISMATCH"),
        ({"sizes": (64,)}, "SIZE_OR_SYNTAX_MISMATCH"),
        ({"dtypes": ("bfloat16",)}, "COLLECTIVE_DTYPE_MISMATCH"),
        ({"state": "scheduled"}, "COLLECTIVE_STATE_MISMATCH"),
        ({"name": "broadcast", "sizes": (64,), "state": "started"}, "COLLECTIVE_TYPE_MISMATCH"),
    ],
)
def test_the_first_difference_gives_the_word_and_the_minority_is_the_culprit(change, state):
    found, detail, odd = compared({**others(), 3: SENT._replace(**change)})
    assert found == state
    assert odd == ((3,) if change else ())
    assert ("rank 3: " in detail) == bool(change)


def test_where_no_side_is_in_the_majority_nobody_is_blamed():
    assert compared({0: SENT, 1: SENT._replace(name="broadcast")})[2] == ()


def test_all_to_alls_may_be_uneven_as_long_as_all_that_is_sent_arrives():
    uneven = {
        0: RankCall("all_to_all", (10,), (4,), ("float32",)),
        1: RankCall("all_to_all", (2,), (8,), ("float32",)),
    }
    assert compared(uneven)[0] == "FULLY_MATCHED"
    assert compared(uneven, is_complete=False)[0] == "UNDECIDED"
    uneven[1] = uneven[1]._replace(out_sizes=(9,))
    assert compared(uneven)[:2] == (
        "SIZE_OR_SYNTAX_MISMATCH",
        "12 elements are sent, and 13 expected",
    )


def test_a_gather_needs_equal_inputs_only():
    gather = {
        0: RankCall("gather", (8,), (16,), ("float32",)),
        1: RankCall("gather", (8,), (), ("float32",)),
    }
    assert compared(gather)[0] == "FULLY_MATCHED"


def test_rank_without_a_call_is_one_place_ahead_of_all_others():
    calls = [SENT._replace(sizes=(size,)) for size in (1, 2, 3, 4, 5, 6)]
    assert rank_without_a_call({0: calls, 1: calls[1:]}) == (1,)
    assert rank_without_a_call({0: calls, 1: calls, 2: calls[1:]}) == (2,)
    assert rank_without_a_call({0: calls, 1: calls}) == ()
    assert rank_without_a_call({0: calls, 1: []}) == ()


def test_many_ranks_are_counted():
    assert ranks_in_words([3]) == "rank 3"
    assert ranks_in_words(range(6)) == "ranks 0, 1, 2, 3 and 2 more"


def entry(sequence, name="all_reduce", elements=100, state="completed", dtype="float32"):
    sizes, dtypes = ((elements,),), (dtype,)
    return FlightEntry(
        record_id=sequence,
        group="0",
        sequence=sequence,
        op_id=sequence,
        p2p_sequence=-1,
        is_p2p=False,
        name=name,
        profiling_name=f"nccl:{name}",
        source=None,
        target=None,
        input_sizes=sizes,
        output_sizes=sizes,
        input_dtypes=dtypes,
        output_dtypes=dtypes,
        state=state,
        retired=state == "completed",
        created_ns=sequence,
        started_ns=None,
        completed_ns=None,
        duration_s=None,
        timeout_s=600.0,
        frames=(),
    )


def record(rank, entries, size=2):
    group = TraceGroup("0", "default_pg", "nccl", tuple(range(size)), size)
    return FlightRecord(Path(f"dump_{rank}"), rank, "2.5", {"0": group}, {}, tuple(entries), ())


DUMPED_SIZES = (100, 200, 300, 400)


def calls(sequences=range(4), **more):
    return [entry(i, elements=DUMPED_SIZES[i % 4], **more) for i in sequences]


def test_ranks_that_agree_have_no_verdict():
    found = diagnose_flight([record(0, calls()), record(1, calls())])
    assert found.verdict == found.mismatches == ()
    assert "4 collectives are FULLY_MATCHED, 0 are not." in found.remarks
    assert (found.source, found.num_ranks, found.world_size) == ("flight_record", 2, 2)


def test_a_rank_that_never_called_the_last_one_is_the_culprit():
    waiting = [*calls(range(3)), entry(3, state="started")]
    found = diagnose_flight(
        [record(0, waiting, 3), record(1, calls(range(3)), 3), record(2, waiting, 3)]
    )
    (finding,) = found.verdict
    assert (finding.cause, finding.share, finding.ranks) == ("desynchronised", 1.0, (1,))
    assert "not all ranks join the collective: rank 1 did not call it" in finding.evidence
    (row,) = found.mismatches
    assert (row.sequence, row.missing_ranks, row.culprit_ranks) == (3, (1,), (1,))


def test_of_two_ranks_the_one_that_left_a_call_out_is_found_by_what_it_calls_next():
    shifted = [entry(0), *[entry(i, elements=DUMPED_SIZES[i + 1]) for i in (1, 2)]]
    found = diagnose_flight([record(0, calls()), record(1, shifted)])
    assert found.verdict[0].ranks == (1,)
    assert "SIZE_OR_SYNTAX_MISMATCH" in found.verdict[0].evidence
    assert found.mismatches[0].sequence == 1


@for_each(
    ("change", "state"),
    [
        ({"name": "broadcast"}, "COLLECTIVE_TYPE_MISMATCH"),
        ({"elements": 7}, "SIZE_OR_SYNTAX_MISMATCH"),
        ({"dtype": "float16"}, "COLLECTIVE_DTYPE_MISMATCH"),
        ({"state": "scheduled"}, "COLLECTIVE_STATE_MISMATCH"),
    ],
)
def test_mismatches_have_the_analysers_words(change, state):
    odd = [*calls(range(3)), entry(3, **{"elements": 400, **change})]
    records = [record(rank, odd if rank == 2 else calls(), 4) for rank in range(4)]
    found = diagnose_flight(records)
    assert [(row.state, row.culprit_ranks) for row in found.mismatches] == [(state, (2,))]


def test_what_a_circular_buffer_forgot_is_not_missing():
    found = diagnose_flight([record(0, calls()), record(1, calls(range(2, 4)))])
    assert found.mismatches == ()


def test_a_collective_that_all_called_and_none_completed_points_at_the_network():
    stuck = [*calls(range(3)), entry(3, state="started")]
    found = diagnose_flight([record(0, stuck), record(1, stuck)])
    assert found.verdict == ()
    assert found.remarks[-1] == (
        "All ranks called all_reduce (group 0, collective_seq_id 3), and none completed it: not "
        "the order of collectives, but the network or a kernel holds them up."
    )


def test_a_collective_that_not_all_still_know_says_nothing_of_all():
    waiting = [entry(0, state="started"), *calls(range(1, 4))]
    found = diagnose_flight([record(0, waiting), record(1, calls(range(2, 4)))])
    assert found.mismatches == ()
    assert not any("All ranks called" in remark for remark in found.remarks)


def test_ranks_without_a_dump_are_said():
    found = diagnose_flight([record(0, calls(), 4), record(3, calls(), 4)])
    assert any(remark.startswith("There is no dump of ranks 1, 2") for remark in found.remarks)


def test_uneven_all_to_alls_of_some_ranks_are_undecided_and_nobodys_fault():
    calls_to_all = [[entry(0, "all_to_all", elements)] for elements in (5, 9)]
    some = [record(rank, calls, 4) for rank, calls in enumerate(calls_to_all)]
    found = diagnose_flight(some)
    assert [row.state for row in found.mismatches] == ["UNDECIDED"]
    assert found.verdict == ()


def test_only_collectives_of_one_group_are_compared_and_only_among_its_members():
    pair = TraceGroup("1", "pair", "nccl", (0, 1), 2)
    records = []
    for rank in range(3):
        whole = record(rank, calls(), 3)
        uncounted = entry(-1, elements=rank + 1)
        message = replace(entry(9, "send", rank + 1), is_p2p=True)
        of_pair = [
            replace(entry(i, "broadcast"), group="1") for i in range(2) if rank in pair.ranks
        ]
        of_one = [replace(entry(0), group=f"alone {rank}")]
        entries = (*whole.entries, uncounted, message, *of_pair, *of_one)
        groups = {
            **whole.groups,
            "1": pair,
            f"alone {rank}": TraceGroup(f"alone {rank}", "", "nccl", (rank,), 1),
        }
        records.append(replace(whole, entries=entries, groups=groups))
    found = diagnose_flight(records)
    assert found.mismatches == ()
    assert "6 collectives are FULLY_MATCHED, 0 are not." in found.remarks


def test_a_state_that_torch_does_not_name_is_least_far():
    dumps = [record(rank, [entry(0, state=state)]) for rank, state in enumerate(("started", "?"))]
    (row,) = diagnose_flight(dumps).mismatches
    assert (row.state, row.culprit_ranks) == ("COLLECTIVE_STATE_MISMATCH", (1,))


def test_two_dumps_of_one_rank_are_refused():
    with pytest.raises(ScenarioError, match="dump_0: is of rank 0, as dump_0 is; give the dumps"):
        diagnose_flight([record(0, calls()), record(0, calls())])


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
    return mismatches(lines, match(lines))


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
    assert mismatches(lines, match(lines)) == []


def test_uneven_all_to_alls_of_some_of_the_ranks_are_not_judged():
    lines = []
    for rank in range(2):
        maker = RankMaker(rank, 4)
        for i in range(3):
            maker.call("all_to_all", i + 0.1, i + 0.2, (10, 2)[rank], out=(40, 80)[rank])
        lines.append(timeline(maker.trace(), rank))
    assert mismatches(lines, match(lines)) == []
