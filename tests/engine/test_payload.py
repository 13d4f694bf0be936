"""The payload moves real arrays: sums, copies, and the bits of gloo."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simdp.collectives import ALL_REDUCE, FAMILIES
from simdp.collectives.ring import RingAllReduce
from simdp.engine import payload
from simdp.strategies.ddp import DDP
from simdp.workload.layers import Parameter

GOLDEN = Path(__file__).parents[1] / "golden"

ALGORITHMS = [
    pytest.param(member(), id=f"{family}-{kind}")
    for family, table in FAMILIES.items()
    for kind, member in table.items()
]


def pieces(plan, array):
    offsets = plan.offsets(array.size, array.itemsize)
    return [array[a:b] for a, b in pairwise(offsets)]


def expected(plan, before, rank):
    """What a rank must hold of the buffer: pairs of (what is there, what should be)."""
    total = np.sum(before, axis=0)
    root, n = plan.root, plan.world_size
    match plan.collective:
        case "all_reduce" | "barrier":
            return [(slice(None), total)]
        case "broadcast":
            return [(slice(None), before[root])]
        case "reduce":
            return [(slice(None), total)] if rank == root else []
    offsets = plan.offsets(total.size, total.itemsize)
    part = [slice(offsets[c], offsets[c + 1]) for c in range(n)]
    match plan.collective:
        case "reduce_scatter":
            return [(part[rank], total[part[rank]])]
        case "scatter":
            return [(part[rank], before[root][part[rank]])]
        case "all_gather":
            return [(part[c], before[c][part[c]]) for c in range(n)]
        case "gather":
            return [(part[c], before[c][part[c]]) for c in range(n)] if rank == root else []
    raise AssertionError(plan.collective)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(
    world_size=st.integers(1, 9),
    num_elements=st.integers(0, 40),
    root=st.integers(0, 8),
    data=st.data(),
)
def test_every_rank_ends_with_what_the_collective_promises(
    algorithm, world_size, num_elements, root, data
):
    seed = data.draw(st.integers(0, 2**16))
    before = np.random.default_rng(seed).integers(-9, 9, (world_size, num_elements)).astype(float)
    plan = algorithm.plan(world_size, num_elements * 8.0, root % world_size)
    buffers = [row.copy() for row in before]
    payload.run(plan, buffers)
    for rank, buffer in enumerate(buffers):
        for place, value in expected(plan, before, rank):
            np.testing.assert_array_equal(buffer[place], value)


@pytest.mark.parametrize("kind", ALL_REDUCE)
@pytest.mark.parametrize("world_size", [2, 3, 4, 7, 8])
def test_one_hot_contributions_are_each_counted_once(kind, world_size):
    plan = ALL_REDUCE[kind]().plan(world_size, 8.0 * world_size)
    buffers = list(np.eye(world_size))
    payload.run(plan, buffers)
    assert (np.stack(buffers) == 1).all()


@pytest.mark.parametrize("kind", ALL_REDUCE)
@given(world_size=st.integers(2, 9), num_elements=st.integers(0, 300), seed=st.integers(0, 99))
def test_all_replicas_hold_the_same_bits_within_the_summation_bound(
    kind, world_size, num_elements, seed
):
    random = np.random.default_rng(seed)
    before = random.standard_normal((world_size, num_elements)).astype(np.float32)
    buffers = [row.copy() for row in before]
    payload.run(ALL_REDUCE[kind]().plan(world_size, 4.0 * num_elements), buffers)
    for buffer in buffers:
        assert buffer.tobytes() == buffers[0].tobytes()
    exact = before.astype(float).sum(axis=0)
    bound = world_size * np.finfo(np.float32).eps * np.abs(before).astype(float).sum(axis=0)
    assert (np.abs(buffers[0] - exact) <= bound).all()


def test_ring_and_tree_add_in_different_orders():
    before = np.random.default_rng(0).standard_normal((5, 1000)).astype(np.float32)
    bits = set()
    for kind in ("ring", "tree"):
        buffers = [row.copy() for row in before]
        payload.run(ALL_REDUCE[kind]().plan(5, 4000.0), buffers)
        bits.add(buffers[0].tobytes())
    assert len(bits) == 2


def test_a_block_that_spans_many_cache_blocks_gives_the_same_bits(monkeypatch):
    before = np.random.default_rng(1).standard_normal((3, 10_000)).astype(np.float32)
    results = []
    for nbytes in (2**12, 2**30):
        monkeypatch.setattr(payload, "CACHE_NBYTES", nbytes)
        buffers = [row.copy() for row in before]
        payload.run(RingAllReduce().plan(3, 40_000.0), buffers)
        results.append(buffers[0].tobytes())
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("buffers", "message"),
    [
        ([np.zeros(3)], "needs 2 buffers, got 1"),
        ([np.zeros(3), np.zeros(4)], "must be 1-D and alike"),
        ([np.zeros(3), np.zeros(3, np.float32)], "must be 1-D and alike"),
        ([np.zeros((3, 1)), np.zeros((3, 1))], "must be 1-D and alike"),
    ],
)
def test_buffers_that_do_not_match_are_refused(buffers, message):
    with pytest.raises(ValueError, match=message):
        payload.run(RingAllReduce().plan(2, 24.0), buffers)


# Against real torch ----------------------------------------------------------------------------

COLLECTIVES = json.loads((GOLDEN / "g12_collectives.json").read_text())


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_collectives_leave_what_torch_leaves(world_size):
    golden = COLLECTIVES[f"w{world_size}"]
    start = [np.arange(6.0) + 10 * rank for rank in range(world_size)]

    def after(family, kind, buffers, root=0):
        plan = FAMILIES[family][kind]().plan(world_size, 8.0 * buffers[0].size, root)
        payload.run(plan, buffers)
        return plan, buffers

    copies = lambda: [buffer.copy() for buffer in start]  # noqa: E731
    for kind in FAMILIES["all_reduce"]:
        _, out = after("all_reduce", kind, copies())
        for rank in range(world_size):
            np.testing.assert_array_equal(out[rank], golden[f"rank{rank}"]["all_reduce_SUM"])
    for kind in FAMILIES["broadcast"]:
        _, out = after("broadcast", kind, copies(), root=1)
        for rank in range(world_size):
            np.testing.assert_array_equal(out[rank], golden[f"rank{rank}"]["broadcast_src1"])
    for kind in FAMILIES["reduce"]:
        _, out = after("reduce", kind, copies())
        np.testing.assert_array_equal(out[0], golden["rank0"]["reduce_dst0"])
    gathered = [np.zeros(6 * world_size) for _ in range(world_size)]
    for rank, buffer in enumerate(gathered):
        buffer[6 * rank : 6 * rank + 6] = start[rank]
    for family, key, ranks in (
        ("all_gather", "all_gather", range(world_size)),
        ("gather", "gather_dst0", [0]),
    ):
        for kind in FAMILIES[family]:
            plan, out = after(family, kind, [buffer.copy() for buffer in gathered])
            for rank in ranks:
                found = np.stack(pieces(plan, out[rank]))
                np.testing.assert_array_equal(found, golden[f"rank{rank}"][key])


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("num_elements", [1, 7, 1000, 20011])
def test_gloo_chunking_gives_gloos_bits(world_size, num_elements):
    golden = np.load(GOLDEN / "g03_gloo_all_reduce.npz")[f"w{world_size}_n{num_elements}"]
    buffers = [
        np.random.default_rng(1000 * num_elements + rank)
        .standard_normal(num_elements)
        .astype(np.float32)
        for rank in range(world_size)
    ]
    plan = RingAllReduce(chunking="gloo").plan(world_size, 4.0 * num_elements)
    payload.run(plan, buffers)
    for buffer in buffers:
        assert buffer.tobytes() == golden.tobytes()


SHAPES = [(96, 32), (96,), (64, 96), (64,), (10, 64), (10,)]
PARAMETERS = [Parameter(str(i), shape, 0.0) for i, shape in enumerate(SHAPES)]
READY = ["5", "4", "3", "2", "1", "0"]


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("iteration", [1, 2])
@pytest.mark.parametrize(
    ("setting", "strategy"),
    [
        ("default", DDP()),
        ("cap0.01", DDP(bucket_cap=f"{int(0.01 * 2**20)} B")),
        (
            "cap0.01_findunused",
            DDP(bucket_cap=f"{int(0.01 * 2**20)} B", find_unused_parameters=True),
        ),
    ],
)
def test_bucketed_averages_equal_those_of_torch_bit_for_bit(
    world_size, iteration, setting, strategy
):
    golden = np.load(GOLDEN / "g03c_bitexact.npz")
    local = golden[f"w{world_size}_local_it{iteration}"]
    begins = np.cumsum([0] + [p.num_elements for p in PARAMETERS])
    place = {p.name: slice(begins[i], begins[i + 1]) for i, p in enumerate(PARAMETERS)}
    averaged = np.empty(local.shape[1], np.float32)
    for names in strategy.buckets(PARAMETERS, READY, 4, iteration - 1):
        buffers = [
            np.concatenate([rank[place[name]] for name in names]) * np.float32(1 / world_size)
            for rank in local
        ]
        plan = RingAllReduce(chunking="gloo").plan(world_size, buffers[0].nbytes)
        payload.run(plan, buffers)
        ends = np.cumsum([0] + [place[name].stop - place[name].start for name in names])
        for name, begin, end in zip(names, ends, ends[1:], strict=False):
            averaged[place[name]] = buffers[0][begin:end]
    assert averaged.tobytes() == golden[f"w{world_size}_{setting}_it{iteration}"].tobytes()
