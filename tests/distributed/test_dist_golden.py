"""What each collective leaves on each rank, as real gloo processes of torch left it."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each

import simdp.distributed as dist

FOLDER = Path(__file__).parents[1] / "golden"
GOLDEN = json.loads((FOLDER / "g12_collectives.json").read_text())
MAKER = runpy.run_path(str(FOLDER / "real_gloo.py"))
REAL = json.loads((FOLDER / "real_gloo.json").read_text())

OPS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG")
NOTES = {"reduce_note"}


def x(rank):
    return np.arange(6) + 10.0 * rank


def program(rank, backend):
    """The program that the golden numbers are from."""
    dist.init_process_group(backend)
    n = dist.get_world_size()
    left = {"seed003_allreduce_int64": np.arange(2) + 1 + 2 * rank}
    dist.all_reduce(left["seed003_allreduce_int64"])
    for op in OPS:
        left[f"all_reduce_{op}"] = x(rank)
        dist.all_reduce(left[f"all_reduce_{op}"], op=dist.ReduceOp[op])
    left["broadcast_src1"] = x(rank)
    dist.broadcast(left["broadcast_src1"], src=1)
    left["reduce_dst0"] = x(rank)
    dist.reduce(left["reduce_dst0"], dst=0)
    left["all_gather"] = [np.zeros(6) for _ in range(n)]
    dist.all_gather(left["all_gather"], x(rank))
    left["gather_dst0"] = None if rank else [np.zeros(6) for _ in range(n)]
    dist.gather(x(rank), left["gather_dst0"], dst=0)
    left["scatter_src0_100+i"] = np.zeros(2)
    pieces = None if rank else [np.full(2, 100.0 + i) for i in range(n)]
    dist.scatter(left["scatter_src0_100+i"], pieces, src=0)
    left["reduce_scatter_list"] = np.zeros(2)
    pieces = [np.full(2, 10.0 * rank + i + 1) for i in range(n)]
    dist.reduce_scatter(left["reduce_scatter_list"], pieces)
    left["reduce_scatter_tensor"] = np.zeros(2)
    dist.reduce_scatter_tensor(left["reduce_scatter_tensor"], np.arange(2.0 * n) + 10 * rank)
    left["all_gather_into_tensor"] = np.zeros(2 * n)
    dist.all_gather_into_tensor(left["all_gather_into_tensor"], np.full(2, float(rank)))
    left["all_to_all_single"] = np.zeros(n)
    dist.all_to_all_single(left["all_to_all_single"], np.arange(float(n)) + 10 * rank)
    return left


@pytest.mark.slow
@for_each("backend", dist.BACKENDS)
@for_each("world_size", [2, 3, 4])
def test_every_collective_leaves_what_torch_leaves(world_size, backend):
    found = dist.launch(program, world_size, args=(backend,)).values
    for rank, left in enumerate(found):
        expected = GOLDEN[f"w{world_size}"][f"rank{rank}"]
        assert set(left) == set(expected) - NOTES
        for name, values in left.items():
            if name == "reduce_dst0" and rank:  # which torch leaves open
                np.testing.assert_array_equal(values, x(rank))
            elif values is None:
                assert expected[name] is None
            else:
                np.testing.assert_array_equal(values, expected[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "world_size", [3, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 4, 5))]
)
def test_reductions_on_gloo_have_the_bits_of_real_gloo(world_size):
    def program(rank):
        dist.init_process_group("gloo")
        return list(MAKER["play"](dist, lambda array: array, rank, world_size))

    found = dict(MAKER["digests"](dist.launch(program, world_size).values))
    assert found == REAL[f"w{world_size}"]["bits"]


@pytest.mark.filterwarnings("ignore:Running monitored_barrier")
@for_each("world_size", [2, 3, 4, 5])
def test_other_calls_leave_what_they_leave_on_real_processes(world_size):
    def program(rank):
        dist.init_process_group("gloo")
        return list(MAKER["calls"](dist, lambda array: array, rank, world_size))

    for rank, called in enumerate(dist.launch(program, world_size).values):
        found = json.loads(json.dumps(called))
        assert found == REAL[f"w{world_size}"]["calls"][rank]
