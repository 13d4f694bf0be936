"""Collectives of ranks are matched, and their clocks aligned; ranks of other jobs are refused."""

from dataclasses import replace

import numpy as np
import pytest
from trace_maker import RankMaker, job

import simdp
from simdp.errors import ScenarioError
from simdp.traces.matching import match
from simdp.traces.timeline import timeline


def put(traces):
    return match([timeline(trace, place) for place, trace in enumerate(traces)])


def test_clocks_become_one_by_the_ends_whatever_the_files_say():
    found = put(job([[0, 0.05, 0.2]] * 4, origins=[0, 5_000_000_000, -70_000_000]))
    assert found.offset == pytest.approx([0.0, -5.0, 0.07])
    for collective in found.collectives:
        assert np.ptp(collective.end) < 1e-9
        assert collective.start - collective.start[0] == pytest.approx([0, 0.05, 0.2])
        assert collective.last == 2
        assert collective.shortest == pytest.approx(0.01)
        assert collective.is_complete
    assert (len(found.collectives), found.unmatched, found.by_ends) == (4, 0, set())


def dropped(sequence=False):
    """Two ranks of which each lacks two of the ten collectives that the other has."""
    makers = [RankMaker(rank, 2, origin_ns=rank * 10**9) for rank in range(2)]
    end = np.cumsum([0.1, 0.07, 0.2, 0.11, 0.4, 0.09, 0.31, 0.15, 0.05, 0.21])
    for rank, maker in enumerate(makers):
        for i, done in enumerate(end):
            if i not in ((1, 6), (3, 4))[rank]:
                at = done - rank
                more = {"sequence": i} if sequence else {}
                maker.call("all_reduce", at - 0.01 * (1 + rank), at, **more)
    return [maker.trace() for maker in makers]


def test_where_events_are_missing_ends_tell_which_collectives_are_the_same():
    found = put(dropped())
    assert found.by_ends == {"0"}
    assert found.unmatched == 4
    assert found.offset == pytest.approx([0.0, -1.0])
    assert [collective.places.tolist() for collective in found.collectives] == [
        [0, 0],
        [1, 2],
        [4, 3],
        [5, 5],
        [6, 6],
        [7, 7],
    ]


def test_sequence_numbers_are_believed():
    found = put(dropped(sequence=True))
    assert found.by_ends == set()
    assert [collective.number for collective in found.collectives] == [0, 2, 5, 7, 8, 9]


def test_groups_of_one_name_and_different_ranks_are_different():
    makers = [RankMaker(rank, 4) for rank in range(4)]
    for rank, maker in enumerate(makers):
        maker.group("1", (0, 1) if rank < 2 else (2, 3))
        for i in range(3):
            done = i + 1 + 0.3 * (rank // 2)
            maker.call("all_reduce", done - 0.1 * (rank + 1), done, group="1", size=2)
    found = put([maker.trace() for maker in makers])
    assert sorted({tuple(collective.ranks.tolist()) for collective in found.collectives}) == [
        (0, 1),
        (2, 3),
    ]
    assert {collective.last for collective in found.collectives} == {0, 2}


def test_messages_and_groups_of_one_rank_are_no_meetings():
    makers = [RankMaker(rank, 2) for rank in range(2)]
    for maker in makers:
        maker.call("send", 0.1, 0.2)
        maker.call("all_reduce", 0.3, 0.4, size=1)
    assert put([maker.trace() for maker in makers]).collectives == []


def test_a_trace_that_begins_later_is_matched_by_the_numbers_of_its_steps():
    traces = job([[0, 0.1]] * 5)
    late = job([[0, 0.1]] * 5)[1]
    keep = late.collectives.step >= 2
    maker = RankMaker(1, 2)
    for start, end, step in zip(
        late.collectives.start[keep],
        late.collectives.end[keep],
        late.collectives.step[keep],
        strict=True,
    ):
        number = int(late.steps.number[step])
        maker.step(number, late.steps.start[step], late.steps.end[step])
        maker.call("all_reduce", start, end)
    found = put([traces[0], maker.trace()])
    assert [collective.places.tolist() for collective in found.collectives] == [
        [2, 0],
        [3, 1],
        [4, 2],
    ]
    assert found.offset == pytest.approx([0, 0])


def piped(late=0.0, origins=(0, 0), peers=True):
    """Rank 0 sends to rank 1, which waits since the middle of rank 0's compute; and back."""
    makers = [RankMaker(rank, 2, origin_ns=origins[rank]) for rank in range(2)]
    for step in range(4):
        for rank, maker in enumerate(makers):
            shift = -origins[rank] * 1e-9
            maker.step(step, step + shift, step + 1 + shift)
            there, back = ("send", "recv") if rank == 0 else ("recv", "send")
            more = {"peer": 1 - rank} if peers else {}
            arrives = step + 0.2 + late
            begins = (arrives - 0.01) if rank == 0 else step + 0.1
            maker.call(there, begins + shift, arrives + shift, **more)
            maker.kernel(arrives + shift, arrives + 0.1 + shift)
            answers = (arrives + 0.1, arrives + 0.12)
            maker.call(back, answers[0] + shift, answers[1] + shift, **more)
    return [maker.trace() for maker in makers]


def test_messages_are_matched_by_pair_and_order():
    found = put(piped(origins=(0, 3_000_000_000)))
    assert (found.collectives, len(found.messages), found.unmatched) == ([], 8, 0)
    assert found.offset == pytest.approx([0, -3])
    there = [message for message in found.messages if message.ranks.tolist() == [0, 1]]
    assert [message.places.tolist() for message in there] == [[0, 0], [2, 2], [4, 4], [6, 6]]
    assert {message.signature.name for message in there} == {"send"}
    assert [message.last for message in there] == [0] * 4
    assert there[2].end == pytest.approx([2.2, 2.2])
    assert put(piped(peers=False)).messages == []


def test_peers_are_ranks_of_their_group():
    makers = [RankMaker(rank, 4) for rank in (1, 3)]
    for number, maker in enumerate(makers):
        maker.group("pipe", (1, 3))
        name = ("send", "recv")[number]
        maker.call(name, 0.1, 0.2, group="pipe", size=2, peer=1 - number)
    (message,) = put([maker.trace() for maker in makers]).messages
    assert message.group == "pipe of 1,3"
    assert message.ranks.tolist() == [0, 1]


def test_who_receives_waits_for_who_sends():
    from simdp.studies.diagnose import diagnose

    waits = [diagnose(piped(late), remedies=False).waits for late in (0.0, 0.3)]
    for late, listed in zip((0.0, 0.3), waits, strict=True):
        (row,) = listed
        assert (row.rank, row.late_rank) == (1, 0)
        assert row.wait_s == pytest.approx(0.09 + late, rel=0.01)


def refused(traces, words):
    with pytest.raises(ScenarioError, match=words) as caught:
        simdp.diagnose(traces, remedies=False)
    assert len(caught.value.problems) == 1


def test_two_traces_of_one_rank_are_refused():
    one = job([[0, 0.1]] * 3)
    refused(
        [*one, one[0]], "rank0.json: is of rank 0, as rank0.json is; give the traces of one run"
    )


def test_traces_of_jobs_of_different_sizes_are_refused():
    one, other = job([[0, 0.1]] * 3), job([[0, 0.1, 0]] * 3)
    refused([one[0], other[1]], "is of a job of 3 ranks, but rank0.json of one of 2")


def test_ranks_that_share_no_collective_are_refused():
    traces = job([[0, 0.1]] * 4)
    maker = RankMaker(1, 2, None)
    for i, end in enumerate([0.13, 0.71, 5.2, 5.9, 9.3]):
        maker.call("broadcast", end - 0.01, end, 17 + i)
    refused(
        [traces[0], maker.trace()], "none of its . collectives ends with one of .* another rank"
    )


def test_ranks_of_two_jobs_with_the_same_collectives_are_refused():
    random = np.random.default_rng(5)
    makers = [RankMaker(rank, 2, None) for rank in range(2)]
    for maker in makers:
        for end in np.cumsum(random.uniform(0.05, 0.4, 40)):
            maker.call("all_reduce", end - 0.01, end)
    words = "none of its 40 collectives ends with one of .* or of another rank"
    refused([maker.trace() for maker in makers], words)


def test_no_traces_are_refused():
    refused([], "none given")


def test_traces_without_collectives_are_not():
    makers = [RankMaker(rank, 2) for rank in range(2)]
    for maker in makers:
        maker.step(1, 0.0, 1.0)
        maker.kernel(0.0, 1.0, launched=0.0)
    found = simdp.diagnose([maker.trace() for maker in makers], remedies=False)
    assert found.num_ranks == 2
    assert found.compute_s == pytest.approx(1.0)
    assert found.exposed_comm_s == 0


def test_ranks_without_a_common_step_are_refused():
    makers = [RankMaker(rank, 2) for rank in range(2)]
    for rank, maker in enumerate(makers):
        maker.step(1 + rank, 0.0, 1.0)
        maker.call("all_reduce", 0.2, 0.3, sequence=1, launched=0.1)
    words = "no step in it is in the traces of all 2 ranks; profile the same steps"
    refused([maker.trace() for maker in makers], words)


def on_host(makers):
    """Traces without a device."""
    return [replace(maker.trace(), on_host=True) for maker in makers]


def swapped(origins=(0, 0)):
    """Two ranks whose backend has two threads: on one, the second collective begins first.

    A slow rank leaves the first later than the other rank by 3 ms.
    """
    makers = [RankMaker(rank, 2, origin_ns=origins[rank]) for rank in range(2)]
    for rank, maker in enumerate(makers):
        for number in range(4):
            at = number * 0.1 - origins[rank] * 1e-9
            maker.step(number + 1, at, at + 0.1)
            large, small = ((0.010, 0.052), (0.0101, 0.051)) if rank else ((0.01, 0.049),) * 2
            shift = 0.03 * (rank == 1)
            maker.call("all_reduce", at + large[0] + shift, at + large[1], launched=at)
            start = at + small[0] + shift - 0.0002 * (rank == 1)
            maker.call("all_reduce", start, at + small[1], elements=10, launched=at)
    return on_host(makers)


def test_without_a_device_collectives_are_paired_by_size_in_each_step():
    found = put(swapped())
    assert (len(found.collectives), found.unmatched, found.by_ends) == (8, 0, set())
    for collective in found.collectives:
        assert len(set(collective.signatures)) == 1
        assert collective.last == 1
    assert found.one_clock


def test_clocks_of_one_host_are_those_of_the_files_though_ranks_leave_apart():
    found = put(swapped(origins=(0, 70_000_000)))
    assert found.offset == pytest.approx([0.0, -0.07])
    assert found.collectives[0].shortest == pytest.approx(0.049 - 0.0399)


def test_clocks_by_which_a_rank_leaves_before_another_enters_are_not_one():
    traces = swapped(origins=(0, 70_000_000))
    apart = [traces[0], replace(traces[1], origin_ns=5_000_000_000)]
    found = put(apart)
    assert not found.one_clock
    assert found.offset == pytest.approx([0.0, -0.07], abs=4e-3)


def test_a_call_that_one_rank_lacks_leaves_the_other_pairs_as_they_are():
    traces = swapped()
    calls = traces[1].collectives
    kept = np.arange(len(calls)) != 3
    cut = type(calls)(
        **{
            name: column[kept] if isinstance(column, np.ndarray) else column
            for name, column in vars(calls).items()
        }
    )
    found = put([traces[0], replace(traces[1], collectives=cut)])
    assert (len(found.collectives), found.unmatched, found.by_ends) == (7, 1, set())
