"""Operations of reductions, and what real gloo does in their place."""

import numpy as np
import pytest

import simdp.distributed as dist

OPS = {"BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor}


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, bool])
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


@pytest.mark.parametrize(
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
