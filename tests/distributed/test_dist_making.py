"""How groups are made: arguments of torch's, many groups at once, and what is refused."""

from datetime import timedelta

import numpy as np
import pytest
from for_each import for_each

import simdp.distributed as dist
from simdp.errors import DeadlockError, ProgramError


def test_arguments_that_cost_nothing_are_accepted(box):
    def program(rank):
        dist.init_process_group(
            "cpu:gloo,cuda:nccl",
            "tcp://10.1.1.20:23456",
            timedelta(minutes=5),
            world_size=2,
            rank=rank,
            group_name="main",
            pg_options=object(),
            device_id=rank,
        )
        group = dist.new_group(
            [0, 1], timedelta(minutes=5), "GLOO", object(), group_desc="pair", device_id="cuda:0"
        )
        dist.barrier(group, device_ids=[rank], timeout=timedelta(seconds=1))
        return dist.get_backend(), dist.get_backend(group), group.group_desc

    assert dist.launch(program, 2, cluster=box).values == [("nccl", "gloo", "pair")] * 2

    def stored(rank):
        dist.init_process_group("gloo", store=object(), rank=rank, world_size=2)
        return dist.get_backend()

    assert dist.launch(stored, 2, cluster=box).values == ["gloo"] * 2


@for_each(
    ("arguments", "said"),
    [
        (
            {"init_method": "http://x"},
            "init_method 'http://x' must begin with one of env://, tcp://, "
            "file://; or leave it out.",
        ),
        ({"init_method": "env://", "store": 1}, "give init_method or store, not both."),
        ({"store": 1, "rank": 0}, "store needs world_size and rank as well; give both."),
        ({"timeout": 5}, "timeout is 5; give a timedelta above 0, as timedelta(minutes=10)."),
        (
            {"timeout": timedelta()},
            "timeout is datetime.timedelta(0); give a timedelta above 0, as timedelta(minutes=10).",
        ),
        ({"device_id": 2}, "device_id=2 is no device of a node; give one of 0 ... 1."),
        ({"backend": 3}, "backend is 3; give one of gloo, mpi, nccl."),
    ],
)
def test_a_beginning_without_sense_is_one_line(box, arguments, said):
    with pytest.raises(ProgramError) as caught:
        dist.launch(lambda rank: dist.init_process_group(**arguments), 2, cluster=box)
    assert str(caught.value).split(": ", 1)[1] == f"init_process_group: {said}"


def test_members_alone_may_make_a_group(run):
    def program(rank):
        if rank == 3:
            return None
        dist.compute(seconds=float(rank))
        if rank == 2:
            return dist.new_group([0, 1], use_local_synchronization=True)
        groups = [dist.new_group([0, 1], use_local_synchronization=True) for _ in range(2)]
        total = np.ones(1)
        for group in groups:
            dist.all_reduce(total, group=group)
        return repr(groups[1]), total[0], dist.clock() >= 1.0

    found = run(program).values
    assert found[:2] == [("<group 2 of its own (ranks 0, 1)>", 4.0, True)] * 2
    assert found[2:] == [dist.GroupMember.NON_GROUP_MEMBER, None]


def test_subgroups_cut_a_group_into_neighbours(run):
    def program(rank):
        mine, everything = dist.new_subgroups(group_size=2)
        total = np.full(1, float(rank))
        dist.all_reduce(total, group=mine)
        of_a_node, _ = dist.new_subgroups()
        by_hand, _ = dist.new_subgroups_by_enumeration([[3, 0], [1]])
        return (
            total[0],
            everything.index(mine),
            [group is dist.GroupMember.NON_GROUP_MEMBER for group in everything],
            dist.get_process_group_ranks(of_a_node),
            by_hand and dist.get_process_group_ranks(by_hand),
        )

    first, everyone = [False, True], [0, 1, 2, 3]
    assert run(program).values == [
        (1.0, 0, first, everyone, [0, 3]),
        (1.0, 0, first, everyone, [1]),
        (5.0, 1, first[::-1], everyone, None),
        (5.0, 1, first[::-1], everyone, [0, 3]),
    ]


def test_all_ranks_must_cut_the_same_group(run):
    def program(rank):
        dist.new_subgroups(1, group=dist.new_subgroups(2)[0])

    with pytest.raises(ProgramError) as caught:
        run(program)
    assert str(caught.value).split(": ", 1)[1] == (
        "call 3 of group world differs: rank 0 calls new_subgroups([0], [1], backend=nccl), but "
        "rank 2 calls new_subgroups([2], [3], backend=nccl); let all ranks of a group make the "
        "same calls in the same order."
    )


def test_a_rank_that_misses_is_told_by_the_call_that_waits_for_it(run):
    with pytest.raises(DeadlockError) as caught:
        run(lambda rank: dist.new_subgroups(1) if rank == 0 else None, 2)
    assert caught.value.waiting == [
        "rank 0 waits in new_subgroups([0], [1], backend=nccl) of group world, call 2, for rank 1",
        "rank 1 has ended",
    ]


@for_each(
    ("call", "said"),
    [
        (
            lambda: dist.new_subgroups(3),
            "new_subgroups: group_size=3 must be a whole number that divides 2, the ranks of the "
            "group.",
        ),
        (
            lambda: dist.new_subgroups(0),
            "new_subgroups: group_size=0 must be a whole number that divides 2, the ranks of the "
            "group.",
        ),
        (
            lambda: dist.new_subgroups("1"),
            "new_subgroups: group_size='1' must be a whole number that divides 2, the ranks of the "
            "group.",
        ),
        (
            lambda: dist.new_subgroups_by_enumeration([[0], [1, 0]]),
            "new_subgroups_by_enumeration: rank 0 is in two subgroups; name it once.",
        ),
        (
            lambda: dist.new_subgroups_by_enumeration([]),
            "new_subgroups_by_enumeration: give a list of lists of ranks, as [[0, 1], [2, 3]].",
        ),
        (
            lambda: dist.new_subgroups_by_enumeration([0, 1]),
            "new_subgroups_by_enumeration: ranks is 0; give a list of ranks, as [0].",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(refused, call, said):
    assert refused(lambda rank: call() if rank == 0 else None) == said
