"""What a program's caller may hook into: who leaves, what a collective does, and sums as trees."""

import numpy as np

from simdp.collectives import Collectives
from simdp.collectives.ring import RingAllReduce
from simdp.distributed.launch import find
from simdp.engine.programs.folding import additions, fold
from simdp.engine.programs.records import CallArguments, CallSignature
from simdp.engine.programs.runtime import Runtime


def test_a_rank_leaves_before_another_one_enters():
    seen = []
    where = find("dgx-a100", 2)
    runtime = Runtime(
        where.cluster,
        {"nccl": where.collectives},
        0,
        lambda rank: seen.append(("enter", rank)),
        lambda rank: seen.append(("leave", rank)),
    )
    runtime.run(lambda rank: runtime.pass_until(rank, 1.0 + rank))
    assert seen == [
        *(("enter", 0), ("leave", 0), ("enter", 1), ("leave", 1)),
        *(("enter", 0), ("enter", 1)),
    ]
    assert runtime.clock == [1.0, 2.0]


def test_a_collective_may_be_carried_out_by_its_caller():
    where = find("dgx-a100", 2)
    runtime = Runtime(where.cluster, {"nccl": Collectives()}, 0, lambda rank: None)
    tensors = [np.full(3, float(rank)) for rank in range(2)]
    given = []

    def carry(found):
        given.extend(found)
        for each in found:
            each.outputs[0][...] = 7.0

    def body(rank):
        group = runtime.group("default", (0, 1), "nccl")
        tensor = tensors[rank]
        handle = group.issue(
            rank,
            runtime.clock[rank],
            CallSignature("all_reduce"),
            CallArguments((tensor,), (tensor,)),
            "all_reduce",
            exchange=carry,
        )
        runtime.wait(handle)

    played = runtime.run(body)
    assert len(given) == 2  # once, with what both ranks gave
    assert (np.array(tensors) == 7.0).all()
    assert (played.clocks > 0).all()


def value(tree, pieces):
    if isinstance(tree, int):
        return pieces[tree]
    left, right = tree
    return value(left, pieces) + value(right, pieces)


def test_sums_as_trees_are_what_folding_leaves():
    buffers = list(np.random.Generator(np.random.PCG64(1)).standard_normal((5, 103)))
    plan = RingAllReduce(chunking="gloo").plan(5, float(buffers[0].nbytes))
    offsets = plan.offsets(103, 8).tolist()
    pieces = [
        value(tree, [buffer[begin:end] for buffer in buffers])
        for tree, begin, end in zip(additions(plan), offsets, offsets[1:], strict=False)
    ]
    assert (np.concatenate(pieces) == fold(plan, buffers)).all()
