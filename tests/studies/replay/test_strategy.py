"""Strategies are recognised from the collectives of a step."""

from dataclasses import replace

import numpy as np

from simdp.studies.replay.strategy import recognise
from simdp.studies.replay.timeline import BACKWARD, FORWARD, UPDATE, StepCollective, StepWork
from tests.for_each import for_each

MIB = 2**20

PHASES = [FORWARD] * 4 + [BACKWARD] * 4 + [UPDATE]


def sent(name, nbytes, after, dtype="float32", size=4, queued=False):
    return StepCollective(
        name, name, float(nbytes), dtype, "0", size, after, queued, 1e-3, 0.0, 1e-3
    )


def step(*calls):
    n = len(PHASES)
    return StepWork(
        names=tuple(f"kernel{i}" for i in range(n)),
        phase=np.array(PHASES),
        busy=np.full(n, 1e-3),
        idle=np.zeros(n),
        waits=np.zeros(n),
        nbytes=np.full(n, np.nan),
        launched=np.arange(n) * 1e-3,
        stalled=0.0,
        begin=0.0,
        end=n * 1e-3,
        sent=tuple(calls),
    )


GATHERS = [sent("all_gather", 4 * MIB, i) for i in (0, 1, 2)]
SCATTERS = [sent("reduce_scatter", 4 * MIB, i) for i in (6, 7, 8)]


@for_each(
    ("calls", "strategy"),
    [
        ([], {"kind": "ddp", "broadcast_buffers": False}),
        (
            [sent("all_reduce", 2 * MIB, 5), sent("all_reduce", 30 * MIB, 8)],
            {"kind": "ddp", "broadcast_buffers": False},
        ),
        (
            [*(sent("all_reduce", n, 5) for n in (3 * MIB, 4 * MIB)), sent("all_reduce", 9, 8)],
            {"kind": "ddp", "broadcast_buffers": False},
        ),
        (
            [sent("all_reduce", 3 * MIB, i) for i in (5, 6, 8)],
            {"kind": "ddp", "bucket_cap": f"{3 * MIB} B", "broadcast_buffers": False},
        ),
        (
            [sent("broadcast", 4096, 0), sent("all_reduce", MIB, 8, "bfloat16")],
            {"kind": "ddp", "comm_hook": "bf16"},
        ),
        (GATHERS + SCATTERS, {"kind": "fsdp1"}),
        (GATHERS[:2] + SCATTERS, {"kind": "zero3", "reduce_bucket_size": MIB}),
        (
            [
                sent("all_gather", 4 * MIB, 0, size=2),
                sent("reduce_scatter", 4 * MIB, 8, size=2),
                sent("all_reduce", 2 * MIB, 8, size=2),
            ],
            {"kind": "hsdp", "shard_size": 2},
        ),
        (
            [
                *(sent("reduce_scatter", n, 6) for n in (25 * MIB, MIB)),
                *(sent("all_gather", n, 9) for n in (25 * MIB, MIB)),
            ],
            {"kind": "zero2"},
        ),
        (
            [sent("all_reduce", 2 * MIB, 8), sent("broadcast", MIB, 9), sent("broadcast", MIB, 9)],
            {"kind": "zero1"},
        ),
        (
            [sent("all_reduce", 2 * MIB, 8), sent("all_gather", 2 * MIB, 9)],
            {"kind": "zero1", "communication": "deepspeed"},
        ),
    ],
)
def test_collectives_tell_the_strategy(calls, strategy):
    assert recognise(step(*calls), 4).strategy == strategy


def test_fully_shard_copies_its_units():
    copying = step(*GATHERS, *SCATTERS)
    copying = replace(copying, names=("split_with_sizes_copy", *copying.names[1:]))
    assert recognise(copying, 4).strategy == {"kind": "fsdp"}


def test_what_no_strategy_makes_is_named():
    found = recognise(step(sent("all_to_all", MIB, 1), sent("all_reduce", 2 * MIB, 8)), 4)
    assert [one.name for one in found.foreign] == ["all_to_all"]
    assert "all_to_all" in found.remarks[0]
    assert [one.nbytes for one in found.buckets] == [2 * MIB]


def test_a_bucket_without_a_size_is_no_bucket():
    found = recognise(step(sent("all_reduce", np.nan, 8)), 4)
    assert not found.buckets
    assert len(found.foreign) == 1


def test_buckets_in_a_queue_were_launched_between_those_that_were_not():
    calls = [sent("all_reduce", 30 * MIB, 5)]
    calls += [sent("all_reduce", 30 * MIB, 8, queued=True)] * 2
    found = recognise(step(*calls), 4)
    assert [one.after for one in found.buckets] == [5, 7, 8]


def test_a_rank_alone_tells_its_buckets():
    found = recognise(step(sent("all_reduce", 2 * MIB, 8, size=1)), 1)
    assert [one.nbytes for one in found.buckets] == [2 * MIB]


FETCHED = [sent("all_gather", nbytes, 0) for nbytes in (8 * MIB, 200 * MIB, 20 * MIB)]


@for_each(
    ("calls", "strategy"),
    [
        # As many gathers as reduce_scatters, as of units, but parameters that stay whole, too.
        (
            [FETCHED[0], sent("reduce_scatter", 9 * MIB, 8), sent("all_gather", MIB, 10)],
            {"kind": "zero3"},
        ),
        ([*FETCHED, sent("reduce_scatter", 228 * MIB, 8)], {"kind": "zero3"}),
        (
            [*FETCHED[::2], FETCHED[2], sent("reduce_scatter", 48 * MIB, 8)],
            {"kind": "zero3", "prefetch_bucket_size": 5 * MIB},
        ),
        (
            [*FETCHED, *(sent("reduce_scatter", nbytes * MIB, 8) for nbytes in (128, 100))],
            {"kind": "zero3", "reduce_bucket_size": 32 * MIB},
        ),
    ],
)
def test_parameters_that_are_fetched_are_those_of_zero3(calls, strategy):
    found = recognise(step(*calls), 4)
    assert found.strategy == strategy
    assert (
        found.units == tuple(one for one in calls if one.name == "all_gather")[: len(found.units)]
    )
    assert len(found.units) + len(found.persistent) + len(found.buckets) == len(calls)


def test_a_root_whose_sums_wait_in_a_queue_keeps_a_kernel():
    """All sums were sent behind backward: units that are as large have as many kernels."""
    units = [sent("reduce_scatter", 4 * MIB, after) for after in (6, 8, 8)]
    copies = step(*GATHERS, *units)
    assert [one.after for one in recognise(copies, 4).buckets] == [6, 7, 8]
    uneven = [replace(units[0]), replace(units[1], nbytes=2.0 * MIB), units[2]]
    assert [one.after for one in recognise(step(*GATHERS, *uneven), 4).buckets] == [6, 7, 8]
