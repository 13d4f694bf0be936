"""Process groups: who is in them, who waits for whom, and what is refused."""

import numpy as np
import pytest
from for_each import for_each

import simdp.distributed as dist
from simdp.errors import DeadlockError, ProgramError


def test_ranks_and_sizes_are_those_of_the_group(run):
    def program(rank):
        group = dist.new_group(np.array([3, 1]))
        asked = dist.get_rank(), dist.get_world_size(), dist.get_backend()
        return *asked, dist.get_rank(group), dist.get_world_size(group), group

    found = run(program).values
    assert [values[:-1] for values in found] == [
        (0, 4, "nccl", -1, -1),
        (1, 4, "nccl", 0, 2),
        (2, 4, "nccl", -1, -1),
        (3, 4, "nccl", 1, 2),
    ]
    assert found[0][-1] is dist.GroupMember.NON_GROUP_MEMBER
    assert (found[3][-1].rank(), found[3][-1].size()) == (1, 2)


def test_a_group_reduces_its_members_only_and_has_global_roots(run):
    def program(rank):
        group = dist.new_group([1, 3])
        total, copy = np.full(2, float(rank)), np.full(2, float(rank))
        if rank % 2:
            dist.all_reduce(total, group=group)
            dist.broadcast(copy, src=3, group=group)
        return total[0], copy[0]

    assert run(program).values == [(0, 0), (4, 3), (2, 2), (4, 3)]


def test_who_is_no_member_is_warned_and_gets_none(run):
    def program(rank):
        group = dist.new_group([0, 1])
        tensor = np.full(2, float(rank))
        given = dist.all_reduce(tensor, group=group), dist.barrier(group=group)
        return given, tensor[0]

    with pytest.warns(UserWarning, match="does not belong") as caught:
        found = run(program).values
    assert [str(warning.message) for warning in caught] == [
        f"Running {call} on global rank {rank} which does not belong to the given group."
        for rank in (2, 3)
        for call in ("all_reduce", "barrier")
    ]
    assert {warning.filename for warning in caught} == {__file__}
    assert [given for given, _ in found] == [(None, None)] * 4
    assert [value for _, value in found] == [1, 1, 2, 3]


def test_the_default_group_has_a_name_as_in_torch(run):
    def program(rank):
        tensor = np.ones(1)
        dist.all_reduce(tensor, group=dist.group.WORLD)
        everyone = dist.new_group()
        dist.all_reduce(tensor, group=everyone)
        return tensor[0], repr(everyone)

    assert run(program, 2).values == [(4.0, "<group 1 (ranks 0, 1)>")] * 2


def test_the_default_group_can_be_asked_and_compared(run):
    assert dist.group.WORLD is None  # nobody's

    def program(rank):
        world = dist.group.WORLD
        assert world == dist.GroupMember.WORLD != dist.new_group()
        assert len({world, dist.group.WORLD}) == 1
        asked = world.rank(), world.size(), world.group_name, world.group_desc
        dist.destroy_process_group(world)
        return *asked, dist.is_initialized(), dist.group.WORLD

    assert run(program, 2).values == [
        (rank, 2, "default", "default_pg", False, None) for rank in range(2)
    ]


def test_ranks_and_places_are_translated(run):
    def program(rank):
        group = dist.new_group([1, 3])
        if rank != 3:
            return None
        assert dist.get_process_group_ranks(None) == [0, 1, 2, 3]
        assert dist.get_global_rank(dist.group.WORLD, 2) == 2
        return (
            dist.get_process_group_ranks(group),
            dist.get_global_rank(group, 1),
            dist.get_group_rank(group, 3),
        )

    assert run(program).values[3] == ([1, 3], 3, 1)


def test_a_root_may_be_given_by_its_place(run):
    def program(rank):
        group = dist.new_group([1, 3])
        if rank in (0, 2):
            return None
        copy, total, piece = (np.full(1, float(rank)) for _ in range(3))
        dist.broadcast(copy, group=group, group_src=1)
        dist.reduce(total, group=group, group_dst=0)
        dist.scatter(piece, [np.ones(1), np.zeros(1)] if rank == 3 else None, None, group, False, 1)
        got = [np.zeros(1), np.zeros(1)] if rank == 1 else None
        dist.gather(
            np.full(1, rank),
            [each.astype(int) for each in got] if got else None,
            group=group,
            group_dst=0,
        )
        message = np.full(1, float(rank))
        if rank == 1:
            dist.send(message, group=group, group_dst=1)
        else:
            assert dist.recv(message, group=group, group_src=0) == 1
        return copy[0], total[0], piece[0], message[0]

    assert run(program).values == [None, (3, 4, 1, 1), None, (3, 3, 0, 1)]


def test_a_group_that_is_destroyed_is_gone(run, refused):
    def program(rank):
        assert dist.is_initialized()
        dist.destroy_process_group()
        gone = dist.is_initialized()
        dist.init_process_group("gloo")
        return gone, dist.get_backend()

    assert run(program).values == [(False, "gloo")] * 4

    def wrong(rank):
        group = dist.new_group([0, 1])
        dist.destroy_process_group(group)
        dist.barrier(group)

    assert refused(wrong) == (
        "barrier: unknown group <group 1 (ranks 0, 1)>; give an existing group from new_group, "
        "or None for all ranks."
    )


def test_a_barrier_holds_everybody_until_the_last_has_come(run):
    def program(rank):
        dist.compute(seconds=float(rank))
        dist.barrier()
        return dist.clock()

    assert min(run(program).values) > 3.0


def test_making_a_group_waits_for_all_ranks(run):
    def program(rank):
        dist.compute(seconds=float(rank))
        dist.new_group([0])
        return dist.clock()

    assert run(program).values == [3.0] * 4


@for_each(
    ("call", "said"),
    [
        (
            lambda: dist.init_process_group(),
            "init_process_group: the default group is there already; call it once.",
        ),
        (
            lambda: dist.barrier(group=7),
            "barrier: unknown group 7; give an existing group from new_group, or None "
            "for all ranks.",
        ),
        (
            lambda: dist.new_group([0, 2]),
            "new_group: ranks [0, 2] must be some of 0 ... 1, each once and one at least.",
        ),
        (
            lambda: dist.new_group(["0"]),
            "new_group: ranks ['0'] must be some of 0 ... 1, each once and one at least.",
        ),
        (
            lambda: dist.broadcast(np.zeros(1), "0"),
            "broadcast: src='0' is no rank of group default; give one of 0, 1.",
        ),
        (
            lambda: dist.new_group([]),
            "new_group: ranks [] must be some of 0 ... 1, each once and one at least.",
        ),
        (
            lambda: dist.new_group(1),
            "new_group: ranks is 1; give a list of ranks, as [1].",
        ),
        (
            lambda: dist.new_group([1, 1]),
            "new_group: ranks [1, 1] must be some of 0 ... 1, each once and one at least.",
        ),
        (
            lambda: dist.broadcast(np.zeros(1)),
            "broadcast: give src or group_src, one of the two.",
        ),
        (
            lambda: dist.reduce(np.zeros(1), 0, group_dst=0),
            "reduce: give dst or group_dst, one of the two.",
        ),
        (
            lambda: dist.broadcast(np.zeros(1), group_src=2),
            "broadcast: group_src=2 is no place in group default; give one of 0 ... 1.",
        ),
        (
            lambda: dist.get_global_rank(None, -1),
            "get_global_rank: group_rank=-1 is no place in group default; give one of 0 ... 1.",
        ),
        (
            lambda: dist.get_group_rank(None, 2),
            "get_group_rank: global_rank=2 is no rank of group default; give one of 0, 1.",
        ),
        (
            lambda: dist.get_process_group_ranks(dist.GroupMember.NON_GROUP_MEMBER),
            "get_process_group_ranks: this rank is no member of the group; ask on one that is.",
        ),
        (
            lambda: dist.new_group([0], backend="ncl"),
            "unknown backend 'ncl'. Did you mean 'nccl'? Known: gloo, mpi, nccl.",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(refused, call, said):
    assert refused(lambda rank: call() if rank == 0 else None) == said


def test_who_gets_hold_of_a_group_of_others_is_no_member(run):
    shared = {}

    def program(rank):
        mine = dist.new_group([0])
        if rank == 0:
            shared["group"] = mine
        dist.barrier()
        return dist.get_rank(shared["group"])

    assert run(program).values == [0, -1, -1, -1]


def test_a_stranger_cannot_ask_for_the_backend(refused):
    def program(rank):
        group = dist.new_group([0])
        dist.get_backend(group)

    assert refused(program) == (
        "get_backend: this rank is no member of the group; ask on one that is."
    )


@for_each(
    ("call", "said"),
    [
        (
            dist.get_rank,
            "get_rank: there is no default group yet; call init_process_group first.",
        ),
        (
            lambda: dist.init_process_group(init_method="tcp://10.1.1.20:23456"),
            "init_process_group: init_method 'tcp://10.1.1.20:23456' needs world_size and rank as "
            "well; give both.",
        ),
        (
            lambda: dist.init_process_group(world_size=8),
            "init_process_group: world_size is 8, but the program runs on 2 ranks; leave it out, "
            "or start it with --world-size 8.",
        ),
        (
            lambda: dist.init_process_group(rank=1),
            "init_process_group: rank is 1, but this is rank 0; leave it out, or give "
            "int(os.environ['RANK']).",
        ),
    ],
)
def test_a_wrong_beginning_is_one_line(box, call, said):
    with pytest.raises(ProgramError) as caught:
        dist.launch(lambda rank: call(), 2, cluster=box)
    assert str(caught.value).split(": ", 1)[1] == said


def test_outside_of_a_program_nobody_is_a_rank():
    with pytest.raises(ProgramError) as caught:
        dist.get_rank()
    assert str(caught.value) == (
        "get_rank: this code runs on no rank; start it with python -m simdp exec PROGRAM.py, or "
        "with simdp.distributed.launch; threads that a rank starts are no ranks."
    )


# Deadlocks --------------------------------------------------------------------------------------


def test_a_deadlock_names_every_waiting_rank_its_call_and_whom_it_waits_for(run):
    def program(rank):
        dist.barrier()
        dist.barrier()
        if rank in (1, 3):
            dist.all_reduce(np.zeros(6))
        elif rank == 2:
            dist.recv(np.zeros(2), src=0)

    with pytest.raises(DeadlockError) as caught:
        run(program)
    assert caught.value.waiting == [
        "rank 1 waits in all_reduce(float64[6], op=SUM) of group default, call 3, for ranks 0, 2",
        "rank 2 waits in recv(float64[2], src=0) of group default for rank 0 to send",
        "rank 3 waits in all_reduce(float64[6], op=SUM) of group default, call 3, for ranks 0, 2",
        "rank 0 has ended",
    ]
    assert caught.value.exit_status == 4


def test_a_deadlock_across_groups_names_the_call_in_front(run):
    def program(rank):
        one = dist.new_group([0, 1])
        if rank == 0:
            dist.all_reduce(np.zeros(1), group=one)
            dist.barrier()
        else:
            dist.barrier()
            dist.all_reduce(np.zeros(1), group=one)

    with pytest.raises(DeadlockError) as caught:
        run(program, 2)
    assert caught.value.waiting == [
        "rank 0 waits in all_reduce(float64[1], op=SUM) of group 1 (ranks 0, 1), call 1, for rank "
        "1",
        "rank 1 waits in barrier() of group default, call 1, for rank 0",
    ]


def test_two_sends_that_wait_for_each_other_are_a_deadlock(run):
    def program(rank):
        dist.send(np.zeros(1), 1 - rank)
        dist.recv(np.zeros(1))

    with pytest.raises(DeadlockError) as caught:
        run(program, 2)
    assert caught.value.waiting == [
        "rank 0 waits in send(float64[1], dst=1) of group default for rank 1 to receive",
        "rank 1 waits in send(float64[1], dst=0) of group default for rank 0 to receive",
    ]


def test_receiving_from_nobody_is_a_deadlock(run):
    with pytest.raises(DeadlockError, match="for any rank to send; rank 1 has ended"):
        run(lambda rank: dist.recv(np.zeros(1)) if rank == 0 else None, 2)
