"""Who trains on what: torch's DistributedSampler, DataLoader and chunk, recorded from torch."""

import json
from pathlib import Path

import numpy as np
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st

from simdp.workload.sampling import (
    SampleParts,
    StepBatches,
    chunk_sizes,
    distributed_sampler,
    steps_from_global_batches,
    steps_from_microbatches,
    uneven_sampler,
)

GOLDEN = Path(__file__).parents[1] / "golden"
SAMPLER = json.loads((GOLDEN / "g01_sampler.json").read_text())
SCATTER = json.loads((GOLDEN / "g01_scatter.json").read_text())["sizes"]


def name_of(case):
    return "-".join(f"{key}={value}" for key, value in case.items() if not isinstance(value, list))


# torch -------------------------------------------------------------------------------------------


@for_each("case", SAMPLER["cases"], ids=name_of)
def test_ranks_get_what_torchs_sampler_gives_them(case):
    order = np.arange(case["n"])
    if case["shuffle"]:
        recorded = f"n{case['n']}_seed{case['seed']}_epoch{case['epoch']}"
        order = np.array(SAMPLER["permutations"][recorded])
    dealt = distributed_sampler(order, case["world"], case["drop_last"])
    assert dealt.tolist() == case["ranks"]
    assert dealt.shape == (case["world"], case["num_samples"])


@for_each("case", SAMPLER["dataloader_batch_sizes"], ids=name_of)
def test_steps_have_the_sizes_of_torchs_loader(case):
    per_rank = distributed_sampler(np.arange(case["n"]), case["world"], case["sampler_drop_last"])
    steps = steps_from_microbatches(
        per_rank, case["batch_size_per_rank"], 1, case["loader_drop_last"]
    )
    sizes = [step.sizes for step in steps]
    assert all((size == size[0, 0]).all() for size in sizes)  # equal on all ranks
    assert [int(size[0, 0]) for size in sizes] == case["batch_sizes"]


def test_chunks_have_torchs_sizes():
    for batch, by_parts in SCATTER.items():
        for parts, sizes in by_parts.items():
            assert chunk_sizes(int(batch), int(parts)) == sizes


@for_each(
    ("num_samples", "parts", "sizes"),
    [
        (30, 8, [4, 4, 4, 4, 4, 4, 4, 2]),
        (10, 8, [2, 2, 2, 2, 2]),
        (10, 3, [4, 4, 2]),
        (0, 3, []),
    ],
)
def test_chunks_can_be_fewer_than_asked_for(num_samples, parts, sizes):
    assert chunk_sizes(num_samples, parts) == sizes


# Micro-batches -----------------------------------------------------------------------------------


def used(steps):
    """Every sample index in the order of steps, micro-steps and ranks."""
    return [int(i) for step in steps for ranks in step.micro for part in ranks for i in part]


def test_a_step_counts_its_samples():
    step = StepBatches.of([SampleParts(np.array([3, 4, 5]), np.array([0, 2]), np.array([2, 1]))])
    assert step.sizes.tolist() == [[2, 1]]


def test_a_rank_takes_its_own_samples_in_order():
    per_rank = distributed_sampler(np.arange(8), 2, drop_last=False)
    steps = list(steps_from_microbatches(per_rank, 1, 2, drops=False))
    assert [[part.tolist() for part in ranks] for ranks in steps[0].micro] == [
        [[0], [1]],
        [[2], [3]],
    ]
    assert [[part.tolist() for part in ranks] for ranks in steps[1].micro] == [
        [[4], [5]],
        [[6], [7]],
    ]


@for_each(
    ("drop_last", "sizes"),
    [(False, [[[4, 4], [4, 4]], [[4, 4], [1, 1]]]), (True, [[[4, 4], [4, 4]]])],
)
def test_the_last_step_of_an_epoch_may_be_smaller(drop_last, sizes):
    per_rank = distributed_sampler(np.arange(26), 2, drop_last=False)
    steps = steps_from_microbatches(per_rank, 4, 2, drop_last)
    assert [step.sizes.tolist() for step in steps] == sizes


def test_a_list_gives_the_sizes_of_micro_steps():
    per_rank = distributed_sampler(np.arange(14), 2, drop_last=False)
    steps = steps_from_microbatches(per_rank, 0, [3, 1], drops=False)
    assert [step.sizes.tolist() for step in steps] == [[[3, 3], [1, 1]], [[3, 3]]]


@given(
    n=st.integers(1, 60),
    world_size=st.integers(1, 9),
    microbatch=st.integers(1, 7),
    accumulate=st.one_of(st.integers(1, 4), st.lists(st.integers(1, 5), min_size=1, max_size=4)),
    drop_last=st.booleans(),
)
def test_every_sample_is_dealt_and_only_the_head_twice(
    n, world_size, microbatch, accumulate, drop_last
):
    per_rank = distributed_sampler(np.arange(n), world_size, drop_last)
    steps = list(steps_from_microbatches(per_rank, microbatch, accumulate, drop_last))
    counts = np.bincount(np.array(used(steps), dtype=int), minlength=n)
    for step in steps:
        assert (step.sizes == step.sizes[:, :1]).all()
        assert (step.sizes > 0).all()
    if drop_last:
        assert counts.max(initial=0) <= 1
    else:
        assert counts.min() >= 1
        assert counts.sum() == per_rank.size


@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    begin=st.integers(0, 7),
    length=st.integers(0, 7),
)
def test_parts_are_slices_of_the_order(sizes, begin, length):
    order = np.arange(sum(sizes))[::-1]
    parts = uneven_sampler(order, sizes)
    values = np.arange(sum(sizes)) ** 2
    for rank, (part, piece) in enumerate(zip(parts, parts.cut(begin, length), strict=True)):
        assert len(part) == sizes[rank]
        assert piece.tolist() == part[begin : begin + length].tolist()
    largest = [max(values[part], default=0) for part in parts]
    assert parts.largest(values).tolist() == largest
    assert [len(part) for part in parts.only(np.array(sizes) == 3)] == [
        3 * (size == 3) for size in sizes
    ]


# Uneven parts ------------------------------------------------------------------------------------


def test_uneven_parts_are_contiguous_pieces_of_the_order():
    dealt = uneven_sampler(np.arange(10)[::-1], [3, 1, 4])
    assert [part.tolist() for part in dealt] == [[9, 8, 7], [6], [5, 4, 3, 2]]


@for_each(
    ("drop_last", "sizes"),
    [
        (False, [[[2, 2]], [[2, 1]], [[2, 0]], [[1, 0]]]),
        (True, [[[2, 2]], [[2, 0]], [[2, 0]]]),
    ],
)
def test_a_rank_that_runs_out_gets_nothing_in_the_last_steps(drop_last, sizes):
    dealt = uneven_sampler(np.arange(10), [7, 3])
    steps = steps_from_microbatches(dealt, 2, 1, drop_last)
    assert [step.sizes.tolist() for step in steps] == sizes


def test_a_rank_may_run_out_between_micro_steps():
    dealt = uneven_sampler(np.arange(10), [6, 3])
    (first, second) = steps_from_microbatches(dealt, 2, 2, drops=False)
    assert first.sizes.tolist() == [[2, 2], [2, 1]]
    assert second.sizes.tolist() == [[2, 0]]
    assert [part.tolist() for part in first.micro[1]] == [[2, 3], [8]]


@given(
    parts=st.lists(st.integers(0, 15), min_size=1, max_size=6).filter(any),
    microbatch=st.integers(1, 5),
    accumulate=st.one_of(st.integers(1, 3), st.lists(st.integers(1, 4), min_size=1, max_size=3)),
    drop_last=st.booleans(),
)
def test_every_rank_trains_on_its_own_part_in_order(parts, microbatch, accumulate, drop_last):
    dealt = uneven_sampler(np.arange(sum(parts) + 3), parts)
    steps = list(steps_from_microbatches(dealt, microbatch, accumulate, drop_last))
    whole = sum(accumulate) if isinstance(accumulate, list) else microbatch * accumulate
    for rank, (own, part) in enumerate(zip(dealt, parts, strict=True)):
        assert len(own) == part
        seen = [int(i) for step in steps for ranks in step.micro for i in ranks[rank]]
        kept = part // whole * whole if drop_last else part
        assert seen == own[:kept].tolist()
    for step in steps:
        assert (step.sizes.sum(axis=1) > 0).all()
        wanted = [[len(part) for part in ranks] for ranks in step.micro]
        assert step.sizes.tolist() == wanted


# Global batches ----------------------------------------------------------------------------------


def test_a_global_batch_is_cut_into_contiguous_chunks():
    (step,) = steps_from_global_batches(np.arange(10), 10, 3, 1, drop_last=False)
    assert [part.tolist() for part in step.micro[0]] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_rank_may_get_nothing():
    (step,) = steps_from_global_batches(np.arange(10), 10, 8, 1, drop_last=False)
    assert step.sizes.tolist() == [[2, 2, 2, 2, 2, 0, 0, 0]]


def test_each_ranks_chunk_is_cut_again_into_micro_steps():
    (step,) = steps_from_global_batches(np.arange(10), 10, 2, 3, drop_last=False)
    assert step.sizes.tolist() == [[2, 2], [2, 2], [1, 1]]
    assert step.micro[1][1].tolist() == [7, 8]


def test_each_ranks_chunk_is_cut_again_into_given_sizes():
    (step,) = steps_from_global_batches(np.arange(12), 12, 2, [1, 5], drop_last=False)
    assert step.sizes.tolist() == [[1, 1], [5, 5]]


@for_each(("drop_last", "sizes"), [(False, [[4, 4], [1, 1]]), (True, [[4, 4]])])
def test_the_last_global_batch_may_be_smaller(drop_last, sizes):
    steps = steps_from_global_batches(np.arange(10), 8, 2, 1, drop_last)
    assert [step.sizes[0].tolist() for step in steps] == sizes


@given(
    n=st.integers(1, 60),
    global_batch=st.integers(1, 40),
    world_size=st.integers(1, 9),
    accumulate=st.integers(1, 4),
    drop_last=st.booleans(),
)
def test_every_sample_of_a_global_batch_is_used_once(
    n, global_batch, world_size, accumulate, drop_last
):
    order = np.arange(n)[::-1]
    steps = list(steps_from_global_batches(order, global_batch, world_size, accumulate, drop_last))
    kept = n // global_batch * global_batch if drop_last else n
    assert sorted(used(steps)) == sorted(order[:kept].tolist())
    for step in steps:
        assert step.sizes.shape[1] == world_size
        assert (step.sizes.sum(axis=1) > 0).all()
