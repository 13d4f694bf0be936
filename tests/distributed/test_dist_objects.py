"""Objects: what each call leaves, what it takes, and what is refused."""

import pickle

import numpy as np
import pytest
from for_each import for_each

import simdp.distributed as dist
from simdp.errors import DeadlockError, ProgramError


def thing(rank):
    """Objects whose pickles are of different lengths."""
    return {"rank": rank, "text": "x" * 100 * rank, "array": np.arange(rank)}


def same(one, other):
    return repr(one) == repr(other)


def test_all_ranks_gather_the_objects_of_all(run):
    def program(rank):
        mine, got = thing(rank), [None] * 4
        dist.all_gather_object(got, mine)
        return same(got, [thing(i) for i in range(4)]) and got[rank] is not mine

    assert run(program).values == [True] * 4


def test_one_rank_gathers_the_objects_of_a_group(run):
    def program(rank):
        group = dist.new_group([1, 2, 3])
        if rank == 0:
            return None
        got = [None] * 3 if rank == 3 else None
        dist.gather_object(thing(rank), got, group=group, group_dst=2)
        return got

    found = run(program).values
    assert found[:3] == [None] * 3
    assert same(found[3], [thing(1), thing(2), thing(3)])


def test_each_rank_gets_its_object_of_a_list(run):
    def program(rank):
        got = [None, "kept"]
        dist.scatter_object_list(got, [thing(i) for i in range(4)] if rank == 2 else None, src=2)
        return got

    for rank, got in enumerate(run(program).values):
        assert same(got, [thing(rank), "kept"])


def test_the_objects_of_one_rank_come_to_all_others(run):
    def program(rank):
        objects = [thing(3), "word", None] if rank == 0 else [None] * 3
        mine = list(objects)
        dist.broadcast_object_list(objects, device="cpu")
        return objects, rank > 0 or all(a is b for a, b in zip(mine, objects, strict=True))

    for objects, kept in run(program).values:
        assert same(objects, [thing(3), "word", None])
        assert kept


@for_each("use_batch", [False, True])
def test_objects_are_sent_and_received(run, use_batch):
    def program(rank):
        if rank == 1:
            return dist.send_object_list([thing(1), 7], dst=0, use_batch=use_batch)
        got = [None, None]
        return got, dist.recv_object_list(got, group_src=1, use_batch=use_batch)

    got, source = run(program, 2).values[0]
    assert same(got, [thing(1), 7])
    assert source == 1


def test_objects_take_the_time_of_their_sizes_and_their_padded_bytes(run):
    def program(rank):
        dist.all_gather_object([None] * 4, thing(rank))
        first = dist.clock()
        longest = len(pickle.dumps(thing(3)))
        dist.barrier()
        begin = dist.clock()
        dist.all_gather([np.zeros(1, int) for _ in range(4)], np.zeros(1, int))
        dist.all_gather(
            [np.zeros(longest, np.uint8) for _ in range(4)], np.zeros(longest, np.uint8)
        )
        return first, dist.clock() - begin

    for objects, tensors in run(program).values:
        assert objects == pytest.approx(tensors, rel=1e-9)


def test_messages_of_objects_take_the_time_of_two(run):
    def program(rank):
        if rank == 0:
            dist.send_object_list([thing(3)], 1)
        else:
            dist.recv_object_list([None], 0)
        return dist.clock()

    nbytes = 8 + len(pickle.dumps(thing(3)))
    assert run(program, 2).values == pytest.approx([2 * 2e-6 + nbytes / 1e9] * 2, rel=1e-12)


@for_each(
    "name",
    [
        "all_gather_object",
        "gather_object",
        "scatter_object_list",
        "broadcast_object_list",
        "send_object_list",
        "recv_object_list",
    ],
)
def test_strangers_are_warned_and_nothing_is_left(run, name):
    def program(rank):
        group = dist.new_group([0])
        if rank == 0:
            return None
        kept = ["kept"]
        arguments = {
            "all_gather_object": (kept, 1),
            "gather_object": (1, kept),
            "send_object_list": (kept, 0),
            "recv_object_list": (kept, 0),
        }.get(name, (kept,))
        found = getattr(dist, name)(*arguments, group=group)
        return kept, found

    with pytest.warns(UserWarning, match=f"Running {name} on global rank 1") as caught:
        assert run(program, 2).values[1] == (["kept"], -1 if name.startswith("recv") else None)
    assert {warning.filename for warning in caught} == {__file__}


@for_each(
    ("call", "waits"),
    [
        (
            lambda: dist.all_gather_object([0, 0], 1),
            "all_gather_object(int64[1]) of group default, call 1, for rank 1",
        ),
        (
            lambda: dist.gather_object(1, [0, 0]),
            "gather_object(int64[1], dst=0) of group default, call 1, for rank 1",
        ),
        (
            lambda: dist.scatter_object_list([0], [1, 2]),
            "scatter_object_list(int64[1], src=0) of group default, call 1, for rank 1",
        ),
        (
            lambda: dist.broadcast_object_list([1, 2]),
            "broadcast_object_list(int64[2], src=0) of group default, call 1, for rank 1",
        ),
        (
            lambda: dist.send_object_list([1], 1),
            "send_object_list(int64[1], dst=1) of group default for rank 1 to receive",
        ),
        (
            lambda: dist.recv_object_list([1], 1),
            "recv_object_list(int64[1], src=1) of group default for rank 1 to send",
        ),
    ],
)
def test_a_deadlock_names_the_call_of_objects(run, call, waits):
    with pytest.raises(DeadlockError) as caught:
        run(lambda rank: call() if rank == 0 else None, 2)
    assert caught.value.waiting == [f"rank 0 waits in {waits}", "rank 1 has ended"]


def test_lists_of_different_lengths_name_both_ranks():
    def program(rank):
        dist.init_process_group()
        dist.broadcast_object_list([0] * (rank + 2))

    with pytest.raises(
        ProgramError, match=r"rank 0 calls broadcast_object_list\(int64\[2\], src=0\)"
    ):
        dist.launch(program, 2)


@for_each(
    ("call", "said"),
    [
        (
            lambda: dist.all_gather_object([None], 1),
            "all_gather_object: object_list must be a list with a place for each of 2 ranks, got "
            "one of 1.",
        ),
        (
            lambda: dist.all_gather_object((0, 1), 1),
            "all_gather_object: object_list must be a list with a place for each of 2 ranks, got "
            "(0, 1).",
        ),
        (
            lambda: dist.gather_object(1),
            "gather_object: object_gather_list must be a list with a place for each of 2 ranks, "
            "got None.",
        ),
        (
            lambda: dist.gather_object(1, [0, 0], dst=1),
            "gather_object: object_gather_list belongs to rank 1 alone; leave it out elsewhere.",
        ),
        (
            lambda: dist.scatter_object_list([None]),
            "scatter_object_list: scatter_object_input_list must be a list with a place for each "
            "of 2 ranks, got None.",
        ),
        (
            lambda: dist.scatter_object_list([], [1, 2]),
            "scatter_object_list: scatter_object_output_list is []; give a list with one place at "
            "least.",
        ),
        (
            lambda: dist.broadcast_object_list(None),
            "broadcast_object_list: object_list is None; give a list with one place at least.",
        ),
        (
            lambda: dist.send_object_list([1]),
            "send_object_list: give dst or group_dst, one of the two.",
        ),
        (
            lambda: dist.recv_object_list([1]),
            "recv_object_list: give src or group_src, one of the two.",
        ),
        (
            lambda: dist.recv_object_list([1], 0),
            "recv_object_list: src=0 is this rank itself; give another one.",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(refused, call, said):
    assert refused(lambda rank: call() if rank == 0 else None) == said
