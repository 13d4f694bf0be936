"""Collectives on arrays: dtypes, bits, handles, groups, and what is refused."""

import ml_dtypes
import numpy as np
import pytest
from for_each import for_each

import simdp.distributed as dist
from simdp.collectives import ALL_REDUCE
from simdp.engine import payload


def test_a_sum_has_the_bits_of_the_plan(run):
    generator = np.random.default_rng(0)
    mine = generator.normal(size=(4, 1001)).astype(np.float32)

    def program(rank):
        tensor = mine[rank].copy()
        dist.all_reduce(tensor)
        return tensor

    expected = [row.copy() for row in mine]
    payload.run(ALL_REDUCE["ring"]().plan(4, expected[0].nbytes), expected)
    for rank, tensor in enumerate(run(program).values):
        assert tensor.tobytes() == expected[rank].tobytes()


@for_each("dtype", [np.float16, np.complex128, np.int32, ml_dtypes.bfloat16])
def test_every_dtype_of_numbers_is_added_in_its_own(run, dtype):
    def program(rank):
        tensor = np.full((2, 3), rank + 1).astype(dtype)
        dist.all_reduce(tensor)
        return tensor

    for tensor in run(program).values:
        assert tensor.dtype == dtype
        np.testing.assert_array_equal(tensor.astype(np.complex128), np.full((2, 3), 10))


def test_views_that_are_not_contiguous_are_written_in_place(run):
    def program(rank):
        whole = np.zeros((4, 4))
        whole[:, 1] = rank
        dist.all_reduce(whole[:, 1])
        stacked = np.zeros((4, 2, 2))
        dist.all_gather_into_tensor(stacked[::-1], np.full((2, 2), rank))
        return whole, stacked

    def wrong(rank):
        dist.all_gather_into_tensor(np.zeros((4, 2)), np.full((1, 2), rank))

    with pytest.raises(Exception, match="8 elements of float64; it needs 8 of int64"):
        run(wrong)

    def right(rank):
        whole = np.zeros((4, 4))
        whole[:, 1] = rank
        dist.all_reduce(whole[:, 1])
        stacked = np.zeros((4, 2, 2))
        dist.all_gather_into_tensor(stacked[::-1], np.full((2, 2), float(rank)))
        return whole, stacked

    for whole, stacked in run(right).values:
        assert whole.tolist() == [[0, 6, 0, 0]] * 4
        assert stacked[:, 0, 0].tolist() == [3, 2, 1, 0]


def test_a_tensor_changes_when_its_call_is_over_and_not_before(run):
    def program(rank):
        tensor = np.full(1000, float(rank))
        work = dist.all_reduce(tensor, async_op=True)
        before = tensor[0], work.is_completed()
        dist.compute(seconds=1.0)
        after = tensor[0], work.is_completed()
        begin = dist.clock()
        assert work.wait()
        return before, after, dist.clock() - begin

    for rank, found in enumerate(run(program).values):
        assert found == ((rank, False), (6.0, True), 0.0)


def test_every_call_has_a_handle(run):
    def program(rank):
        n = 4
        ones = [np.ones(2) for _ in range(n)]
        works = [
            dist.all_reduce(np.ones(2), async_op=True),
            dist.broadcast(np.ones(2), 0, async_op=True),
            dist.reduce(np.ones(2), 0, async_op=True),
            dist.scatter(np.ones(2), None if rank else ones, async_op=True),
            dist.gather(np.ones(2), None if rank else ones, async_op=True),
            dist.all_gather(ones, np.ones(2), async_op=True),
            dist.all_gather_into_tensor(np.ones(8), np.ones(2), async_op=True),
            dist.reduce_scatter(np.ones(2), ones, async_op=True),
            dist.reduce_scatter_tensor(np.ones(2), np.ones(8), async_op=True),
            dist.all_to_all(ones, ones, async_op=True),
            dist.all_to_all_single(np.ones(4), np.ones(4), async_op=True),
            dist.barrier(async_op=True),
        ]
        assert not any(work.is_completed() for work in works)
        works[-1].wait()  # the stream takes them in order
        return [work.is_completed() and work.source_rank() for work in works]

    assert run(program).values == [[-1] * 12] * 4


def test_all_to_all_takes_lists_of_any_sizes(run):
    def program(rank):
        inputs = [np.full(rank + to, rank) for to in range(4)]
        outputs = [np.zeros(rank + source, int) for source in range(4)]
        dist.all_to_all(outputs, inputs)
        return [output.tolist() for output in outputs]

    for rank, found in enumerate(run(program).values):
        assert found == [[source] * (rank + source) for source in range(4)]


def test_all_to_all_single_takes_split_sizes(run):
    def program(rank):
        rows = np.arange(3).reshape(3, 1) + 10 * rank
        sizes = [2, 1] if rank == 0 else [1, 2]
        got = np.zeros((sum((2, 1) if rank == 0 else (1, 2)), 1), int)
        dist.all_to_all_single(got, rows, [2, 1] if rank == 0 else [1, 2], sizes)
        return got.ravel().tolist()

    assert run(program, 2).values == [[0, 1, 10], [2, 11, 12]]


def test_a_rank_alone_has_everything_already(run):
    def program(rank):
        tensor, other = np.arange(3.0), np.zeros(3)
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT):
            dist.all_reduce(tensor, op=op)
        dist.broadcast(tensor, 0)
        dist.all_gather_into_tensor(other, tensor)
        dist.all_to_all_single(other, tensor)
        dist.barrier()
        return tensor.tolist(), other.tolist(), dist.clock()

    assert run(program, 1).values == [([0, 1, 2], [0, 1, 2], 0.0)]


@for_each("name", ["all_reduce", "broadcast", "reduce"])
def test_empty_tensors_take_the_latency_alone(run, name):
    def program(rank):
        arguments = () if name == "all_reduce" else (1,)
        getattr(dist, name)(np.zeros(0), *arguments)
        return dist.clock()

    assert 0 < max(run(program).values) < 50e-6


# What is refused --------------------------------------------------------------------------------


def test_calls_that_differ_name_both_ranks_and_both_calls(refused):
    def order(rank):
        if rank == 0:
            dist.all_reduce(np.zeros(2))
        else:
            dist.broadcast(np.zeros(2), 0)

    assert refused(order) == (
        "call 1 of group default differs: rank 0 calls all_reduce(float64[2], op=SUM), but rank 1 "
        "calls broadcast(float64[2], src=0); let all ranks of a group make the same calls in the "
        "same order."
    )


@for_each(
    ("one", "other", "said"),
    [
        (
            lambda: dist.all_reduce(np.zeros(2)),
            lambda: dist.all_reduce(np.zeros(3)),
            "rank 0 calls all_reduce(float64[2], op=SUM), but rank 1 calls all_reduce(float64[3]",
        ),
        (
            lambda: dist.all_reduce(np.zeros(2)),
            lambda: dist.all_reduce(np.zeros(2, np.float32)),
            "rank 1 calls all_reduce(float32[2], op=SUM)",
        ),
        (
            lambda: dist.all_reduce(np.zeros(2)),
            lambda: dist.all_reduce(np.zeros(2), dist.ReduceOp.MAX),
            "rank 1 calls all_reduce(float64[2], op=MAX)",
        ),
        (
            lambda: dist.broadcast(np.zeros((2, 3)), 0),
            lambda: dist.broadcast(np.zeros((2, 3)), 1),
            "rank 0 calls broadcast(float64[2, 3], src=0), but rank 1 calls broadcast(float64[2, 3]"
            ", src=1)",
        ),
        (
            lambda: dist.all_to_all([np.zeros(1)] * 2, [np.zeros(1)] * 2),
            lambda: dist.all_to_all([np.zeros(2)] * 2, [np.zeros(1)] * 2),
            "in all_to_all(float64[2]) rank 0 sends 1 elements to rank 1, which expects 2; give "
            "both the same.",
        ),
    ],
    ids=["shape", "dtype", "op", "root", "pieces"],
)
def test_arguments_that_differ_are_refused(refused, one, other, said):
    assert said in refused(lambda rank: other() if rank else one())


def _read_only():
    tensor = np.zeros(1)
    tensor.flags.writeable = False
    return tensor


@for_each(
    ("call", "said"),
    [
        (
            lambda: dist.all_reduce([1, 2]),
            "all_reduce: tensor is a list; make it a NumPy array before, tensor = "
            "np.array(tensor), and give that.",
        ),
        (
            lambda: dist.all_reduce(np.array(["a"])),
            "all_reduce: tensor holds <U1; give an array of numbers.",
        ),
        (
            lambda: dist.all_reduce(np.broadcast_to(np.zeros(1), 3)),
            "all_reduce: tensor is read-only; give a copy, tensor.copy().",
        ),
        (
            lambda: dist.all_reduce(np.zeros(1), op="sum"),
            "all_reduce: op='sum' is no reduction; give one of ReduceOp.SUM, ReduceOp.AVG, "
            "ReduceOp.MAX, ReduceOp.MIN, ReduceOp.PRODUCT, ReduceOp.BAND, ReduceOp.BOR, "
            "ReduceOp.BXOR.",
        ),
        (
            lambda: dist.all_reduce(np.zeros(1, int), op=dist.ReduceOp.AVG),
            "all_reduce: ReduceOp.AVG of int64 is no int64; use a float dtype, or ReduceOp.SUM.",
        ),
        (
            lambda: dist.broadcast(np.zeros(1), 2),
            "broadcast: src=2 is no rank of group default; give one of 0, 1.",
        ),
        (
            lambda: dist.reduce(np.zeros(1), -1),
            "reduce: dst=-1 is no rank of group default; give one of 0, 1.",
        ),
        (
            lambda: dist.scatter(np.zeros(1)),
            "scatter: scatter_list must be a list with a tensor for each of 2 ranks, got None.",
        ),
        (
            lambda: dist.gather(np.zeros(1), [np.zeros(1)]),
            "gather: gather_list must be a list with a tensor for each of 2 ranks, got 1 tensors.",
        ),
        (
            lambda: dist.gather(np.zeros(1), [np.zeros(1)], dst=1),
            "gather: gather_list belongs to rank 1 alone; leave it out elsewhere.",
        ),
        (
            lambda: dist.all_gather([np.zeros(1), np.zeros(2)], np.zeros(1)),
            "all_gather: each tensor of tensor_list has 2 elements of float64; it needs 1 of "
            "float64.",
        ),
        (
            lambda: dist.reduce_scatter_tensor(np.zeros(2), np.zeros(3)),
            "reduce_scatter_tensor: input has 3 elements of float64; it needs 4 of float64.",
        ),
        (
            lambda: dist.all_to_all_single(np.zeros(3), np.zeros(3)),
            "all_to_all_single: input has 3 rows, which 2 ranks cannot share evenly; give "
            "input_split_sizes.",
        ),
        (
            lambda: dist.all_to_all_single(np.zeros(3), np.zeros(3), None, [-1, 4]),
            "all_to_all_single: input_split_sizes [-1, 4] must be a list of 2 whole numbers >= 0 "
            "that add up to 3, the rows of input.",
        ),
        (
            lambda: dist.all_to_all_single(np.zeros(4), np.zeros(4), None, [1.5, 2.5]),
            "all_to_all_single: input_split_sizes [1.5, 2.5] must be a list of 2 whole numbers >= "
            "0 that add up to 4, the rows of input.",
        ),
        (
            lambda: dist.all_to_all_single(np.zeros(4), np.zeros(4), None, 2),
            "all_to_all_single: input_split_sizes 2 must be a list of 2 whole numbers >= 0 that "
            "add up to 4, the rows of input.",
        ),
        (
            lambda: dist.scatter(np.zeros(2), np.zeros((2, 2))),
            "scatter: scatter_list must be a list with a tensor for each of 2 ranks, got a "
            "ndarray.",
        ),
        (
            lambda: dist.scatter(np.zeros(2), np.zeros((2, 2)), src=1),
            "scatter: scatter_list belongs to rank 1 alone; leave it out elsewhere.",
        ),
        (
            lambda: dist.all_gather([np.zeros(1), _read_only()], np.zeros(1)),
            "all_gather: tensor_list[1] is read-only; give a copy, tensor_list[1].copy().",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(refused, call, said):
    assert refused(lambda rank: call() if rank == 0 else None) == said


def test_what_overflows_is_inf_and_nobody_is_told(run):
    # Warnings are errors in tests.
    def program(rank):
        tensor = np.full(2, 60_000, np.float16)
        dist.all_reduce(tensor)
        return tensor.tolist()

    assert run(program).values == [[np.inf, np.inf]] * 4


def test_all_to_all_names_the_ranks_that_do_not_agree(refused):
    def program(rank):
        sizes = [[1, 1], [2, 1]][rank]
        dist.all_to_all([np.zeros(1), np.zeros(1)], [np.zeros(size) for size in sizes])

    assert refused(program).endswith(
        "in all_to_all(float64[2]) rank 1 sends 2 elements to rank 0, which expects 1; give both "
        "the same."
    )


@for_each("name", ["wait", "is_completed"])
def test_a_handle_belongs_to_the_rank_that_made_it(refused, name):
    works = {}

    def program(rank):
        if rank == 0:
            works[0] = dist.all_reduce(np.zeros(1), async_op=True)
            works[0].wait()
        getattr(works[0], name)()

    assert refused(program) == (
        f"{name}: rank 1 waits for all_reduce(float64[1], op=SUM) of rank 0; let each rank wait "
        "for its own calls."
    )


def test_a_handle_that_is_asked_for_ever_is_told_that_no_time_passes(refused):
    def program(rank):
        work = dist.all_reduce(np.zeros(1), async_op=True)
        while not work.is_completed():
            pass

    assert refused(program) == (
        "is_completed of all_reduce(float64[1], op=SUM) was called 100,000 times at the same "
        "instant; virtual time passes in compute() and wait() only, so call one of them."
    )
