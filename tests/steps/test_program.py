"""Programs: one plan for steps that cannot differ, all plans of a run, and what follows."""

from itertools import pairwise

import numpy as np
import pytest
from every_strategy import EVERY, ON_RANKS, PIECES, WARM, WIDTHS, launches, run_of, scenario
from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from small_workload import NUM_SAMPLES, ops_of, program, workload

from simdp.steps import ops
from simdp.steps.facts import Facts
from simdp.steps.ops import (
    AllGather,
    AllReduce,
    Average,
    Broadcast,
    CollectiveCall,
    Free,
    Open,
    Release,
    SplitBucket,
)
from simdp.steps.program import LATE, MAX_PLANS, Program
from simdp.strategies.comm_hooks.compression import PowerSGD
from simdp.strategies.ddp import DDP
from simdp.strategies.local_sgd import LocalSGD

SIZES = {"layers.0.bias": 8, "layers.0.weight": 48, "layers.1.bias": 5, "layers.1.weight": 40}
SIZES |= {"layers.2.bias": 3, "layers.2.weight": 15}
ELEMENTS = sum(SIZES.values())
READY = [3, 15, 5, 40, 8, 48]
"""Sizes in the order in which gradients are ready: the last layer's first, of it the bias."""


def batches_of(chosen, world_size=4):
    kinds, _ = chosen.kinds_of_steps(world_size, NUM_SAMPLES)
    return kinds[0]


# One plan for equal steps ------------------------------------------------------------------------


@for_each("strategy", EVERY, ids=str)
def test_steps_that_cannot_differ_are_one_object(strategy):
    chosen = scenario(strategy, steps=30)
    found = chosen.program
    (world_size,) = {chosen.cluster.world_size}
    batches = list(chosen.workload.batches(world_size, 0, chosen.base))
    late = [found.plan(number, batches[number]) for number in (16, 22, 28)]
    assert late[0] is late[1] is late[2]
    assert found.plan(16, batches[16]) is found.steady or strategy["kind"] == "local_sgd"


def test_what_was_asked_decides_whether_steps_are_the_same():
    found = program(LocalSGD(local_steps=3, warmup_steps=2))
    batches = batches_of(workload())
    plans = [found.plan(number, batches) for number in range(9)]
    first, warm, local, average = plans[0], plans[1], plans[2], plans[4]
    assert [plans.index(plan) for plan in plans] == [0, 1, 2, 2, 4, 2, 2, 4, 2]
    assert ops_of(first, AllReduce)
    assert ops_of(warm, AllReduce)
    assert not ops_of(local, AllReduce, Average)
    assert len(ops_of(average, Average)) == 1


def test_ranks_without_samples_make_another_step_only_where_a_strategy_asks():
    few = workload(microbatch=None, global_batch=6)
    full, last = (kinds[-1] for kinds in (few.kinds_of_steps(4, 6)[0], few.kinds_of_steps(4, 8)[0]))
    assert (full.sizes > 0).sum() != (last.sizes > 0).sum()
    plain, joined = program(DDP(), few), program(DDP(join=True), few)
    assert plain.plan(5, full) is plain.plan(6, last)
    assert joined.plan(5, full) is not joined.plan(6, last)


class Loop:
    """A loop of what a test says of each step."""

    def __init__(self, say):
        self.say = say

    def setup(self, facts):
        yield from ()

    def step(self, facts, step):
        yield from self.say(facts, step)


def program_that(say, num_steps=8):
    chosen = workload()
    kinds, _ = chosen.kinds_of_steps(4, NUM_SAMPLES)
    return Program(
        Loop(say),
        Facts(chosen, 4, 4, scenario({"kind": "ddp"}).cluster.overheads),
        kinds,
        num_steps,
    )


def test_operations_of_another_kind_are_another_step_though_they_hold_the_same():
    bucket = ops.Bucket((), 0, "float32", 0.0)

    def say(facts, step):
        yield (Open if step.before(4) else Release)(bucket)

    found, batches = program_that(say), batches_of(workload())
    assert type(found.plan(0, batches)[0]) is Open
    assert type(found.plan(4, batches)[0]) is Release
    assert len(found.plans) == 2


def test_a_step_that_says_the_same_for_other_reasons_is_the_same_object():
    def say(facts, step):
        step.before(4)
        yield ops.Meet()

    found, batches = program_that(say), batches_of(workload())
    assert found.plan(0, batches) is found.plan(4, batches)


@pytest.mark.slow
def test_where_every_step_differs_the_oldest_is_forgotten():
    asked = []

    def say(facts, step):
        asked.append(step)
        number = next(n for n in range(1000) if step.before(n + 1))
        yield ops.Hold("temporary", float(number))

    found, batches = program_that(say), batches_of(workload())
    for number in range(2 * MAX_PLANS):
        assert found.plan(number, batches)[0].nbytes == number
    assert len(asked) == 2 * MAX_PLANS
    found.plan(2 * MAX_PLANS - 1, batches)
    assert len(asked) == 2 * MAX_PLANS
    found.plan(0, batches)
    assert len(asked) == 2 * MAX_PLANS + 1


# Every plan of a run -----------------------------------------------------------------------------


def played(chosen):
    """The plans that a run reads, in the order of its steps."""
    run = run_of(chosen)
    batches = chosen.workload.batches(run.world_size, chosen.seed, chosen.base)
    return run.program, [run.program.plan(number, of) for number, of in enumerate(batches)]


several = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(ON_RANKS),
        "world_size": st.sampled_from([2, 4]),
        "grad_accum": st.integers(1, 2),
        "length": st.one_of(
            st.fixed_dictionaries({"steps": st.integers(1, 9)}),
            st.fixed_dictionaries({"steps": st.none(), "epochs": st.integers(1, 3)}),
        ),
        "num_samples": st.integers(8, 40),
        "model": st.sampled_from(["mlp", "norm", "synchronised"]),
        "clips": st.booleans(),
        "scales": st.booleans(),
    }
)
NORM = {
    "kind": "sequential",
    "layers": [
        {"name": "l1", "kind": "linear", "in_features": 4, "out_features": 5},
        {"name": "bn", "kind": "batch_norm1d", "num_features": 5},
        {"name": "l2", "kind": "linear", "in_features": 5, "out_features": 2},
    ],
}


def drawn(strategy, world_size, grad_accum, length, num_samples, model, clips, scales):
    """A scenario of what hypothesis has drawn, as far as the strategy goes with it."""
    keeps = strategy.get("comm_hook", {})
    options = {
        **length,
        "grad_accum": grad_accum,
        "dataset": {"kind": "regression", "num_samples": num_samples},
        "clip_grad_norm": 1.0 if clips else None,
    }
    if strategy["kind"] == "data_parallel":
        model = "norm" if model == "synchronised" else model
        options["grad_accum"] = 1
    if model != "mlp":
        options |= {"model": NORM, "sync_batchnorm": model == "synchronised"}
    if scales and not isinstance(keeps, dict):
        options["precision"] = {"kind": "amp", "dtype": "float16"}
    if strategy.get("join") and num_samples >= 3 * world_size:
        parts = [num_samples // world_size - r % 2 for r in range(world_size)]
        options |= {"samples_per_rank": parts, "steps": length.get("steps")}
    return scenario(strategy, world_size, **options)


@pytest.mark.slow
@settings(max_examples=30)
@given(several)
def test_a_run_calls_what_its_program_says_and_nothing_else(given):
    """By name, root, group and size: what is announced is used, what is used is announced."""
    chosen = drawn(**given)
    run = run_of(chosen)
    named = {tuple(map(tuple, of.ranks.tolist())): of.name for of in run.program.groups}
    found = set()
    for launch in launches(run):
        group = None
        if launch.groups is not None:
            ranks = tuple(map(tuple, launch.groups.tolist()))
            group = named.get(ranks, ranks[0])
        if launch.plan.collective not in ("scatter", "gather"):  # copies, of no library
            found.add(
                CollectiveCall(launch.plan.collective, launch.plan.root, group, launch.nbytes)
            )
    everyone = tuple(range(run.world_size))
    announced = {
        called._replace(group=None) if called.group == everyone else called
        for called in run.program.called
        if called.group != (0,)  # a sum over one device sends nothing
    }
    assert found == announced
    plain = {(c.collective, c.root) for c in found if c.group not in named.values()}
    assert plain == set(chosen.calls()) - ({("reduce", 0)} - plain)
    for of in run.program.groups:
        assert {c.collective for c in found if c.group == of.name} == set(of.collectives)


@pytest.mark.slow
@settings(max_examples=30)
@given(several)
def test_every_step_of_a_run_is_among_the_plans(given):
    program, steps = played(drawn(**given))
    assert {id(plan) for plan in steps} <= {id(plan) for plan in program.plans}


@for_each(
    ("strategy", "steps", "kinds"),
    [
        ({"kind": "single"}, 7, 1),
        ({"kind": "ddp"}, 1, 1),
        ({"kind": "ddp"}, 7, 2),  # everything in one bucket, then in the order of readiness
        ({"kind": "ddp", "version": "1.4"}, 7, 1),
        (WARM, 2, 2),
        (WARM, 3, 3),
        (WARM, 4, 4),
        (WARM, 40, 4),
        ({"kind": "local_sgd", "local_steps": 50}, 49, 1),
        ({"kind": "local_sgd", "local_steps": 50}, 50, 2),
        (
            {"kind": "ddp", "version": "1.4", "comm_hook": {"kind": "power_sgd", "start_step": 5}},
            5,
            1,
        ),
        (
            {"kind": "ddp", "version": "1.4", "comm_hook": {"kind": "power_sgd", "start_step": 5}},
            6,
            2,
        ),
        ({"kind": "ddp", "comm_hook": {"kind": "power_sgd", "start_step": 5}}, 6, 3),
    ],
)
def test_all_different_steps_of_a_run_are_found_and_no_other(strategy, steps, kinds):
    strategy = {**strategy, "bucket_cap": "0 B"} if strategy["kind"] == "ddp" else strategy
    chosen = scenario(strategy, steps=steps, dataset={"kind": "regression", "num_samples": 800})
    program, seen = played(chosen)
    assert len(program.plans) == len({id(plan) for plan in seen}) == kinds


@for_each(
    ("length", "roots"),
    [
        ({"epochs": 1}, {2}),
        ({"epochs": 3}, {2}),
        ({"steps": 2}, {2}),
        ({"steps": 1}, {3}),  # within an epoch, while all have samples
        ({"steps": 7}, {2, 3}),
    ],
)
def test_the_last_step_of_an_epoch_is_found_wherever_a_run_ends(length, roots):
    """Rank 2 has samples for two steps of four; the others for one."""
    data = {"kind": "regression", "num_samples": 10}
    joined = workload(samples_per_rank=[2, 2, 4, 2], dataset=data, **length)
    found = Program.of(DDP(join=True), joined, 4, 10)
    assert {op.root for plan in found.plans for op in ops_of(plan, Broadcast)} == roots


def test_the_steady_step_is_long_after_the_first_and_may_lie_beyond_the_run():
    hook = PowerSGD(start_step=10**6, min_compression_rate=0.1)
    found = program(DDP(comm_hook=hook), workload(steps=3))
    assert not any(ops_of(plan, SplitBucket) for plan in found.plans)
    assert ops_of(found.steady, SplitBucket)
    assert found.keeps_errors
    assert found.steady is found.plan(LATE + 5, batches_of(workload()))


# What follows from the operations ----------------------------------------------------------------


@for_each(
    ("strategy", "calls"),
    [
        ({"kind": "single"}, []),
        ({"kind": "parameter_server"}, []),
        ({"kind": "ddp"}, [("broadcast", 0), ("all_reduce", 0)]),
        ({"kind": "ddp", "comm_hook": "top_k"}, [("broadcast", 0), ("all_gather", 0)]),
        ({"kind": "apex"}, [("broadcast", 0), ("all_reduce", 0)]),
        ({"kind": "horovod"}, [("broadcast", 0), ("all_reduce", 0)]),
        ({"kind": "local_sgd", "local_steps": 1}, [("broadcast", 0), ("all_reduce", 0)]),
        ({"kind": "local_sgd", "local_steps": 4}, [("broadcast", 0)]),  # the run ends before
        (
            {"kind": "zero1"},
            [("broadcast", 0), ("all_reduce", 0), *(("broadcast", rank) for rank in (1, 2, 3))],
        ),
        (PIECES, [("broadcast", 0), ("reduce_scatter", 0), ("all_gather", 0)]),
        ({"kind": "zero2"}, [("broadcast", 0), ("reduce_scatter", 0), ("all_gather", 0)]),
        ({"kind": "fsdp"}, [("broadcast", 0), ("all_gather", 0), ("reduce_scatter", 0)]),
        ({"kind": "hsdp"}, []),
        ({"kind": "data_parallel"}, [("broadcast", 0), ("reduce", 0)]),
    ],
    ids=str,
)
def test_what_a_strategy_calls_is_what_it_yields(strategy, calls):
    found = scenario(strategy).program
    assert found.calls == calls
    assert scenario(strategy).calls() == calls


def test_groups_have_the_collectives_that_name_them():
    inside, across = scenario({"kind": "hsdp", "shard_size": 2}).program.groups
    assert (inside.name, inside.ranks.tolist(), inside.stream) == ("shard", [[0, 1], [2, 3]], 0)
    assert (across.name, across.ranks.tolist(), across.stream) == (
        "replicate",
        [[0, 2], [1, 3]],
        1,
    )
    assert set(inside.collectives) == {"broadcast", "all_gather", "reduce_scatter"}
    assert set(across.collectives) == {"broadcast", "all_reduce"}
    clipped = scenario({"kind": "hsdp", "shard_size": 2}, clip_grad_norm=1.0).program.groups[0]
    assert set(clipped.collectives) - set(inside.collectives) == {"all_reduce"}


@for_each(
    ("strategy", "room", "stays"),
    [
        ({"kind": "single"}, 0, False),
        ({"kind": "ddp"}, 4 * ELEMENTS, False),
        ({"kind": "ddp", "gradient_as_bucket_view": True}, 0, True),
        ({"kind": "ddp", "comm_hook": "fp16"}, 4 * ELEMENTS, False),
        # Messages of 40 elements: 3 + 15 + 5 + 40 of the last layers, and 8 + 48 of the first.
        ({"kind": "apex", "message_size": 40}, 4 * 63, False),
        ({"kind": "apex", "message_size": 40, "retain_allreduce_buffers": True}, 476, False),
        ({"kind": "horovod", "fusion_threshold": "1 KiB"}, 1024, False),
        ({"kind": "horovod", "merge": "all", "compression": "fp16"}, 4 * ELEMENTS, False),
        ({"kind": "local_sgd"}, 0, False),
        (WARM, 4 * ELEMENTS, False),
        ({"kind": "zero1"}, 4 * ELEMENTS, False),
        (PIECES, 0, True),
        ({"kind": "zero2"}, 0, False),
        ({"kind": "fsdp"}, 0, False),
        ({"kind": "hsdp"}, 0, False),
        ({"kind": "data_parallel"}, 0, False),
        ({"kind": "parameter_server"}, 0, False),
    ],
    ids=str,
)
def test_what_buckets_take_for_good_is_what_is_filled(strategy, room, stays):
    found = scenario(strategy).program
    assert (found.bucket_room, found.gradients_stay) == (room, stays)


BY_TENSOR = [4 * size for size in READY]


@for_each(
    ("strategy", "nbytes"),
    [
        ({"kind": "single"}, []),
        ({"kind": "ddp"}, [4 * ELEMENTS]),
        ({"kind": "ddp", "bucket_cap": "0 B"}, BY_TENSOR),
        ({"kind": "ddp", "bucket_cap": "0 B", "comm_hook": "fp16"}, BY_TENSOR),
        ({"kind": "apex", "message_size": 1}, BY_TENSOR),
        ({"kind": "apex", "message_size": 1, "delay_allreduce": True}, [4 * ELEMENTS]),
        ({"kind": "horovod", "merge": "none"}, BY_TENSOR),
        ({"kind": "horovod", "merge": "all", "compression": "fp16"}, [2 * ELEMENTS]),
        ({"kind": "local_sgd", "warmup_steps": 2}, []),
        ({"kind": "zero1", "bucket_cap": "0 B"}, BY_TENSOR),
        ({**PIECES, "bucket_cap": "0 B"}, BY_TENSOR),
        ({"kind": "zero2", "bucket_cap": "0 B"}, BY_TENSOR),
        # Rows of 3 and 5 are filled up to what four ranks have in equal parts.
        ({"kind": "fsdp"}, [4 * 24, 4 * 72, 4 * 56]),
        ({"kind": "fsdp", "units": "whole"}, [4 * (24 + 72 + 56)]),
        ({"kind": "hsdp"}, [4 * 24, 4 * 72, 4 * 56]),
        ({"kind": "fsdp1"}, [4 * 18, 4 * 45, 4 * 56]),
        ({"kind": "fsdp1", "units": "whole"}, [4 * ELEMENTS]),
        ({"kind": "data_parallel"}, [4 * ELEMENTS]),
        ({"kind": "parameter_server"}, []),
    ],
    ids=str,
)
def test_buckets_have_the_bytes_of_a_steady_micro_step(strategy, nbytes):
    for accumulate in (1, 2):
        assert scenario(strategy, grad_accum=accumulate).program.bucket_nbytes == nbytes


@for_each(
    ("strategy", "keeps"),
    [(strategy, "power_sgd" in str(strategy) or "top_k" in str(strategy)) for strategy in EVERY],
    ids=str,
)
def test_errors_are_kept_by_hooks_that_feed_them_back_and_by_no_other(strategy, keeps):
    assert scenario(strategy).program.keeps_errors == keeps


@for_each("strategy", EVERY, ids=str)
def test_whether_a_batch_is_handed_out_is_what_its_batches_say(strategy):
    assert scenario(strategy).program.scatters == (strategy["kind"] == "data_parallel")


@for_each(("batch", "scatters"), [({"microbatch": 2}, False), ({"global_batch": 8}, True)])
def test_inference_hands_a_global_batch_out(batch, scatters):
    serving = scenario({"kind": "ddp"}, mode="inference", optimizer="none", **batch).program
    assert serving.scatters == scatters


@for_each(
    ("strategy", "kept", "shape"),
    [
        ({"kind": "zero1"}, (True, True), (1, 4)),
        (PIECES, (True, True), (1, 4)),
        ({"kind": "zero2"}, (True, False), (1, 4)),
        ({"kind": "fsdp"}, (False, False), (1, 4)),
        ({"kind": "fsdp1"}, (False, False), (1, 4)),
        ({"kind": "hsdp", "shard_size": 2}, (False, False), (2, 2)),
    ],
    ids=str,
)
def test_what_is_dealt_to_the_ranks_is_what_the_setup_says(strategy, kept, shape):
    dealt = scenario(strategy).program.partition
    assert tuple(dealt.kept) == kept
    assert dealt.ranks.shape == shape
    elements = [sum(mine.values()) for mine in dealt.owned]
    assert sum(elements) == ELEMENTS
    assert np.all(dealt.ranks.ravel() == np.arange(4))


DEALING = ("zero1", "zero2", "zero3", "fsdp", "fsdp1", "hsdp")


@for_each("strategy", [s for s in EVERY if s["kind"] not in DEALING], ids=str)
def test_other_strategies_deal_nothing(strategy):
    found = scenario(strategy).program
    assert found.partition is None
    assert found.gathered_elements == 0
    assert not [op for plan in found.plans for op in ops_of(plan, AllGather) if op.unit is not None]


UNITS = [a * b + b for a, b in pairwise(WIDTHS)]


@for_each(
    ("options", "together"),
    [
        ({"kind": "fsdp"}, 3),
        ({"kind": "fsdp1"}, 2),
        ({"kind": "fsdp1", "backward_prefetch": "none"}, 2),
        ({"kind": "fsdp1", "forward_prefetch": True}, 3),
        ({"kind": "fsdp1", "limit_all_gathers": False}, 3),
        ({"kind": "fsdp1", "sharding_strategy": "SHARD_GRAD_OP"}, 3),
    ],
    ids=str,
)
def test_the_most_that_is_gathered_is_that_of_units_that_follow_each_other(options, together):
    found = scenario(options).program
    most = max(sum(UNITS[i : i + together]) for i in range(len(UNITS) + 1 - together))
    assert found.gathered_elements == most
    assert len(ops_of(found.steady, Free)) >= len(UNITS)


def test_one_unit_is_gathered_whole():
    assert scenario({"kind": "fsdp", "units": "whole"}).program.gathered_elements == ELEMENTS
    assert scenario({"kind": "zero2"}).program.gathered_elements == 0  # it has them in any case


def test_synchronised_layers_add_their_collectives_to_those_of_the_strategy():
    norm = {"model": NORM, "sync_batchnorm": True}
    found = scenario({"kind": "ddp"}, **norm).program
    assert set(found.calls) == {("broadcast", 0), ("all_gather", 0), ("all_reduce", 0)}
    exchanged = {c for c in found.called if c.collective == "all_gather"}
    # Mean and square sum of each of 5 features, and a count, of every rank.
    assert {c.nbytes for c in exchanged} == {4.0 * 4 * (2 * 5 + 1)}
