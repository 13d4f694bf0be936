"""The payload moves real arrays: blocks, torch's results, and the bits of gloo.

That every algorithm's numbers end where they should is in `tests/collectives/test_sums.py`.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each

from simdp.collectives import ALL_REDUCE, FAMILIES, Layout
from simdp.collectives.ring import RingAllReduce
from simdp.engine import payload
from simdp.strategies.ddp import DDP
from simdp.workload.layers.base import Parameter

GOLDEN = Path(__file__).parents[1] / "golden"


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


@for_each(
    ("buffers", "message"),
    [
        ([np.zeros(3)], "needs 2 buffers, got 1"),
        ([np.zeros(3), np.zeros(4)], "must be 1-D with one shape and dtype"),
        ([np.zeros(3), np.zeros(3, np.float32)], "must be 1-D with one shape and dtype"),
        ([np.zeros((3, 1)), np.zeros((3, 1))], "must be 1-D with one shape and dtype"),
    ],
)
def test_buffers_that_do_not_match_are_refused(buffers, message):
    with pytest.raises(ValueError, match=message):
        payload.run(RingAllReduce().plan(2, 24.0), buffers)


# Against real torch ----------------------------------------------------------------------------

COLLECTIVES = json.loads((GOLDEN / "g12_collectives.json").read_text())


def test_chunks_that_change_places_must_be_equal():
    plan = FAMILIES["all_to_all"]["direct"]().plan(3, 24.0)
    with pytest.raises(ValueError, match="all_to_all needs a multiple of 3 elements, got 4"):
        payload.run(plan, list(np.zeros((3, 4))))


@for_each("world_size", [2, 3, 4])
def test_collectives_leave_what_torch_leaves(world_size):
    golden = COLLECTIVES[f"w{world_size}"]
    start = [np.arange(6.0) + 10 * rank for rank in range(world_size)]

    def after(family, kind, buffers, root=0):
        plan = FAMILIES[family][kind]().plan(world_size, 8.0 * buffers[0].size, root)
        payload.run(plan, buffers)
        return plan, buffers

    def kinds(family):
        """Those that serve one node without further ado."""
        there = [kind for kind in FAMILIES[family] if kind not in ("auto", "msccl")]
        return [k for k in there if FAMILIES[family][k]().problem_with(Layout(world_size)) is None]

    copies = lambda: [buffer.copy() for buffer in start]  # noqa: E731
    for kind in kinds("all_reduce"):
        _, out = after("all_reduce", kind, copies())
        for rank in range(world_size):
            np.testing.assert_array_equal(out[rank], golden[f"rank{rank}"]["all_reduce_SUM"])
    for kind in kinds("broadcast"):
        _, out = after("broadcast", kind, copies(), root=1)
        for rank in range(world_size):
            np.testing.assert_array_equal(out[rank], golden[f"rank{rank}"]["broadcast_src1"])
    for kind in kinds("reduce"):
        _, out = after("reduce", kind, copies())
        np.testing.assert_array_equal(out[0], golden["rank0"]["reduce_dst0"])
    gathered = [np.zeros(6 * world_size) for _ in range(world_size)]
    for rank, buffer in enumerate(gathered):
        buffer[6 * rank : 6 * rank + 6] = start[rank]
    for family, key, ranks in (
        ("all_gather", "all_gather", range(world_size)),
        ("gather", "gather_dst0", [0]),
    ):
        for kind in kinds(family):
            _, out = after(family, kind, [buffer.copy() for buffer in gathered])
            for rank in ranks:
                found = out[rank].reshape(world_size, -1)
                np.testing.assert_array_equal(found, golden[f"rank{rank}"][key])


@for_each("world_size", [2, 3, 4])
@for_each("num_elements", [1, 7, 1000, 20011])
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


@for_each("world_size", [2, 3, 4])
@for_each("iteration", [1, 2])
@for_each(
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
