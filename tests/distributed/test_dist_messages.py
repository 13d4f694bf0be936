"""Point to point: who meets whom, what it takes, and what is refused."""

import numpy as np
import pytest
from for_each import for_each

import simdp.distributed as dist

ALPHA, BANDWIDTH = 2e-6, 1e9  # of a route of the box: two links, as fast as one


def test_a_message_takes_its_latency_and_its_bytes(run):
    def program(rank):
        tensor = np.full(1000, rank + 1.0)
        if rank == 0:
            dist.send(tensor, 1)
        elif rank == 1:
            dist.compute(seconds=1.0)
            assert dist.recv(tensor, 0) == 0
        return tensor[0], dist.clock()

    found = run(program).values
    end = 1.0 + ALPHA + 8000 / BANDWIDTH
    assert found[0] == (1.0, pytest.approx(end, rel=1e-12))
    assert found[1] == (1.0, pytest.approx(end, rel=1e-12))
    assert found[2] == (3.0, 0.0)


def test_messages_between_two_ranks_come_one_after_the_other_in_order(run):
    def program(rank):
        tensors = [np.full(1000, i + 1.0) if rank == 0 else np.zeros(1000) for i in range(3)]
        call = dist.isend if rank == 0 else dist.irecv
        works = [call(tensor, 1 - rank) for tensor in tensors]
        ends = [(work.wait(), dist.clock())[1] for work in works]
        return [tensor[0] for tensor in tensors], ends, works[0].source_rank()

    found = run(program, 2).values
    one = ALPHA + 8000 / BANDWIDTH
    for rank in (0, 1):
        assert found[rank][0] == [1, 2, 3]
        assert found[rank][1] == pytest.approx([one, 2 * one, 3 * one], rel=1e-12)
    assert [source for _, _, source in found] == [-1, 0]


def test_whoever_sends_first_is_received_first(run):
    def program(rank):
        if rank:
            dist.compute(seconds=4.0 - rank)
            return dist.send(np.full(1, rank), 0)
        order = []
        for _ in range(3):
            tensor = np.zeros(1, int)
            order.append((dist.recv(tensor), int(tensor[0])))
        return order

    assert run(program).values[0] == [(3, 3), (2, 2), (1, 1)]


def test_tags_and_groups_are_kept_apart(run):
    def program(rank):
        group = dist.new_group([0, 1])
        if rank == 0:
            works = [
                dist.isend(np.full(1, 1.0), 1, tag=1),
                dist.isend(np.full(1, 2.0), 1, tag=2),
                dist.isend(np.full(1, 3.0), 1, group=group),
            ]
            return [work.wait() for work in works]
        got = []
        for arguments in ({"group": group}, {"tag": 2}, {"tag": 1}):
            tensor = np.zeros(1)
            dist.recv(tensor, 0, **arguments)
            got.append(tensor[0])
        return got

    assert run(program, 2).values[1] == [3, 2, 1]


def test_strangers_of_a_group_send_and_receive_nothing(run):
    def program(rank):
        group = dist.new_group([0, 1])
        if rank == 2:
            one = np.zeros(1)
            assert dist.send(one, 0, group=group) is None
            assert dist.isend(one, 0, group=group) is dist.irecv(one, 0, group=group) is None
            return dist.recv(one, 0, group=group)
        return None

    with pytest.warns(UserWarning, match="does not belong") as caught:
        assert run(program).values[2] == -1
    assert {warning.filename for warning in caught} == {__file__}


def test_messages_that_cross_a_link_at_the_same_time_share_it(run):
    def program(rank):
        tensor = np.zeros(1000)
        if rank in (1, 2):
            dist.send(tensor, 3)
        elif rank == 3:
            works = [dist.irecv(tensor, 1), dist.irecv(tensor.copy(), 2)]
            return [(work.wait(), dist.clock())[1] for work in works]
        return None

    end = ALPHA + 2 * 8000 / BANDWIDTH
    assert run(program).values[3] == pytest.approx([end, end], rel=1e-12)


def test_a_batch_of_messages_goes_around_a_ring(run):
    def program(rank):
        mine, got = np.full(1000, float(rank)), np.zeros(1000)
        ops = [
            dist.P2POp(dist.isend, mine, (rank + 1) % 4),
            dist.P2POp(dist.irecv, got, group_peer=(rank - 1) % 4, group=dist.group.WORLD),
        ]
        assert (ops[1].peer, ops[0].group_peer) == ((rank - 1) % 4, (rank + 1) % 4)
        ops[0].group = dist.group.WORLD
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return got[0], dist.clock()

    one = ALPHA + 8000 / BANDWIDTH
    for rank, (value, end) in enumerate(run(program).values):
        assert value == (rank - 1) % 4
        assert end == pytest.approx(one, rel=1e-12)


def test_strangers_of_a_group_have_no_batch(run):
    def program(rank):
        group = dist.new_group([0, 1])
        if rank == 2:
            return dist.batch_isend_irecv([dist.P2POp(dist.isend, np.zeros(1), 0, group)])
        return None

    with pytest.warns(UserWarning, match="Running batch_isend_irecv on") as caught:
        assert run(program).values[2] == []
    assert {warning.filename for warning in caught} == {__file__}


@for_each(
    ("call", "said"),
    [
        (
            lambda: dist.send(np.zeros(1), 0),
            "send: dst=0 is this rank itself; give another one.",
        ),
        (
            lambda: dist.irecv(np.zeros(1), 5),
            "irecv: src=5 is no rank of group default; give one of 0, 1.",
        ),
        (
            lambda: dist.send(np.zeros(1)),
            "send: give dst or group_dst, one of the two.",
        ),
        (
            lambda: dist.irecv(np.zeros(1), group_src=0),
            "irecv: src=0 is this rank itself; give another one.",
        ),
        (
            lambda: dist.P2POp(dist.P2POp, np.zeros(1), 1),
            "P2POp: op is <class 'simdp.distributed.collectives.P2POp'>; give isend or irecv.",
        ),
        (
            lambda: dist.P2POp(dist.isend, 1.0, 1),
            "P2POp: tensor is a float; make it a NumPy array before, tensor = np.array(tensor), "
            "and give that.",
        ),
        (
            lambda: dist.P2POp(dist.isend, np.zeros(1)),
            "P2POp: give peer or group_peer, one of the two.",
        ),
        (
            lambda: dist.batch_isend_irecv([]),
            "batch_isend_irecv: give a list of one P2POp or more.",
        ),
        (
            lambda: dist.batch_isend_irecv([dist.isend]),
            "batch_isend_irecv: give a list of one P2POp or more.",
        ),
        (
            lambda: dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, np.zeros(1), 1, group)
                    for group in (None, dist.group.WORLD)
                ]
            ),
            "batch_isend_irecv: the messages are of different groups; give each its own batch.",
        ),
        (
            lambda: dist.recv([0]),
            "recv: tensor is a list; make it a NumPy array before, tensor = np.array(tensor), and "
            "give that.",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(refused, call, said):
    assert refused(lambda rank: call() if rank == 0 else None) == said


@for_each("first", [0, 1])
def test_tensors_that_do_not_match_name_both_ranks(refused, first):
    def program(rank):
        dist.compute(seconds=float(rank != first))
        dist.send(np.zeros(2), 1) if rank == 0 else dist.recv(np.zeros(3), 0)

    assert refused(program) == (
        "rank 0 calls send(float64[2], dst=1), but rank 1 takes it with recv(float64[3], src=0); "
        "give both tensors the same dtype and size."
    )
