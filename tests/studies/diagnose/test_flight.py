"""Flight records: what ranks of a job that hangs disagree on."""

from pathlib import Path

import pytest
from for_each import for_each

from simdp.errors import ScenarioError
from simdp.studies.diagnose.flight import diagnose_flight
from simdp.traces import FlightEntry, FlightRecord, TraceGroup


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


SIZES = (100, 200, 300, 400)


def calls(sequences=range(4), **more):
    return [entry(i, elements=SIZES[i % 4], **more) for i in sequences]


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
    shifted = [entry(0), *[entry(i, elements=SIZES[i + 1]) for i in (1, 2)]]
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
    assert any("the network or a kernel holds them up" in remark for remark in found.remarks)


def test_ranks_without_a_dump_are_said():
    found = diagnose_flight([record(0, calls(), 4), record(3, calls(), 4)])
    assert any(remark.startswith("There is no dump of ranks 1, 2") for remark in found.remarks)


def test_uneven_all_to_alls_of_some_ranks_are_undecided_and_nobodys_fault():
    calls_to_all = [[entry(0, "all_to_all", elements)] for elements in (5, 9)]
    some = [record(rank, calls, 4) for rank, calls in enumerate(calls_to_all)]
    found = diagnose_flight(some)
    assert [row.state for row in found.mismatches] == ["UNDECIDED"]
    assert found.verdict == ()


def test_two_dumps_of_one_rank_are_refused():
    with pytest.raises(ScenarioError, match="dump_0: is of rank 0, as dump_0 is; give the dumps"):
        diagnose_flight([record(0, calls()), record(0, calls())])
