"""Operations of reductions, and what real gloo does in their place."""

import numpy as np
import pytest
from for_each import for_each

import simdp.distributed as dist

OPS = {"BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor}


@for_each("backend", ["gloo", "mpi"])
@for_each("dtype", [np.int32, np.uint8, bool])
def test_bits_are_combined(box, backend, dtype):
    start = np.random.default_rng(0).integers(0, 2, (4, 8)).astype(dtype)

    def program(rank):
        dist.init_process_group(backend)
        found = {}
        for name in OPS:
            found[name] = start[rank].copy()
            dist.all_reduce(found[name], op=dist.ReduceOp[name])
        return found

    for found in dist.launch(program, cluster=box).values:
        for name, values in found.items():
            np.testing.assert_array_equal(values, OPS[name].reduce(start, axis=0))


def test_a_list_is_reduced_piece_by_piece_on_gloo_and_takes_its_time(box):
    def program(rank):
        dist.init_process_group("gloo")
        ends = []
        work = dist.reduce_scatter(np.zeros(1000), [np.ones(1000)] * 4, async_op=True)
        assert work.get_future().wait()[0].tolist() == [4.0] * 1000
        ends.append(dist.clock())
        for place in range(4):
            dist.reduce(np.ones(1000), place)
        ends.append(dist.clock() - ends[0])
        dist.barrier()
        begin = dist.clock()
        dist.reduce_scatter_tensor(np.zeros(1000), np.ones(4000))
        ends.append(dist.clock() - begin)
        dist.barrier()
        begin = dist.clock()
        dist.all_reduce(np.ones(4000))
        ends.append(dist.clock() - begin)
        return ends

    for as_list, as_reduces, tensor, whole in dist.launch(program, cluster=box).values:
        assert as_list == pytest.approx(as_reduces, rel=1e-12)
        assert tensor == pytest.approx(whole, rel=1e-9)


@for_each(
    ("op", "dtype", "said"),
    [
        (
            dist.ReduceOp.BOR,
            np.int32,
            "all_reduce: ReduceOp.BOR is not there with backend nccl; use gloo or mpi, or "
            "ReduceOp.MAX of zeros and ones.",
        ),
        (
            dist.ReduceOp.BXOR,
            np.float32,
            "all_reduce: ReduceOp.BXOR of float32 has no sense; use a dtype of whole numbers.",
        ),
    ],
)
def test_bits_are_refused_where_torch_refuses_them(refused, op, dtype, said):
    assert refused(lambda rank: dist.all_reduce(np.zeros(1, dtype), op=op)) == said


@for_each("backend", ["gloo", "nccl"])
def test_several_tensors_are_reduced_in_one_collective_of_their_elements(box, backend):
    start = np.random.default_rng(0).standard_normal((4, 1000))

    def program(rank):
        dist.init_process_group(backend)
        flat = start[rank].copy()
        tensors = [flat[:600].copy(), flat[600:].copy().reshape(20, 20), np.float64(rank)[None]]
        begin = dist.clock()
        assert dist.all_reduce_coalesced(tensors[:2]) is None
        ends = [dist.clock() - begin]
        dist.all_reduce(flat)
        ends.append(dist.clock() - begin - ends[0])
        dist.all_reduce_coalesced(tensors[2], dist.ReduceOp.MAX)
        return ends, [*tensors[0], *tensors[1].flat], flat, tensors[2]

    for (several, one), found, flat, last in dist.launch(program, cluster=box).values:
        np.testing.assert_array_equal(found, flat)  # to the bits of one buffer
        np.testing.assert_allclose(found, start.sum(axis=0), rtol=0, atol=1e-12)
        assert several == pytest.approx(one, rel=1e-9)
        assert last == [3.0]


def test_several_tensors_come_as_a_future_beside_compute(run):
    def program(rank):
        tensors = [np.full(3, rank + 1.0), np.ones((2, 2))]
        begin = dist.clock()
        future = dist.all_reduce_coalesced(tensors, dist.ReduceOp.AVG, async_op=True)
        assert not future.done()
        dist.compute(seconds=1.0)
        found = future.wait()
        assert found[0] is tensors[0]
        return dist.clock() - begin, [each.tolist() for each in found]

    for seconds, found in run(program).values:
        assert seconds == pytest.approx(1.0, rel=1e-9)
        assert found == [[2.5] * 3, [[1.0] * 2] * 2]


@for_each(
    ("tensors", "said"),
    [
        ([], "tensors must be a list of at least one array, got an empty list."),
        ({}, "tensors must be a list of at least one array, got a dict."),
        (
            [np.zeros(2), np.zeros(2, np.float32)],
            "tensors[1] holds float32 and tensors[0] float64; all must have one dtype: make a "
            "call for each dtype.",
        ),
        ([np.zeros(2), 3], "tensors[1] is a int; make it a NumPy array before, "),
    ],
)
def test_what_cannot_be_reduced_in_one_collective_is_refused(refused, tensors, said):
    found = refused(lambda rank: dist.all_reduce_coalesced(tensors))
    assert found.startswith(f"all_reduce_coalesced: {said}")


def test_ranks_that_reduce_several_tensors_of_other_shapes_are_refused(refused):
    said = refused(lambda rank: dist.all_reduce_coalesced([np.zeros(2 + rank), np.zeros(3 - rank)]))
    assert "rank 0 calls all_reduce_coalesced(float64[2], float64[3], op=SUM), but rank 1" in said
