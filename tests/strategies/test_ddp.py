"""DDP's settings: what it refuses to train, and which collectives it will call."""

from pathlib import Path

import numpy as np
import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from small_workload import ops_of, program

from simdp.steps.ops import Broadcast
from simdp.strategies.data_parallel import Single
from simdp.strategies.ddp import DDP
from simdp.workload import Workload

LINEAR = {"kind": "linear", "in_features": 4, "out_features": 3}


def workload(*layers, unused=(), **options):
    model = {
        "kind": "sequential",
        "layers": list(layers) or [LINEAR],
        "unused": list(unused),
        "input_shape": [4],
    }
    data = {"kind": "regression", "num_samples": 640}
    return Workload.model_validate({"model": model, "dataset": data, "microbatch": 2, **options})


# Refusals ----------------------------------------------------------------------------------------


def test_unused_parameters_need_to_be_looked_for():
    idle = workload(LINEAR, {"name": "idle", **LINEAR}, unused=["idle"])
    assert DDP().problem_with(2, idle) == (
        "find_unused_parameters: idle.weight gets no gradient, so that its bucket would never be "
        "complete; set find_unused_parameters: true."
    )
    assert DDP(find_unused_parameters=True).problem_with(2, idle) is None
    assert DDP().problem_with(2, workload()) is None


@for_each("parts", [[8, 4], [8, 7, 8]])
def test_ranks_that_run_out_need_join(parts):
    uneven = workload(samples_per_rank=parts)
    assert DDP().problem_with(len(parts), uneven) == (
        "join: ranks have different numbers of samples, and those that run out would leave the "
        "others waiting; set join: true."
    )
    assert DDP(join=True).problem_with(len(parts), uneven) is None


def test_equal_parts_need_no_join():
    assert DDP().problem_with(2, workload(samples_per_rank=[8, 8])) is None


def test_a_divisor_of_join_needs_join():
    with pytest.raises(ValidationError, match="divide_by_initial_world_size: false needs join"):
        DDP(divide_by_initial_world_size=False)
    assert not DDP(join=True, divide_by_initial_world_size=False).divide_by_initial_world_size


def test_single_trains_one_device_and_has_no_buckets():
    assert Single().problem_with(1, workload()) is None
    assert "cluster.world_size is 2" in Single().problem_with(2, workload())
    alone = program(Single(), workload(), 1, 64)
    assert (alone.called, alone.bucket_nbytes, alone.bucket_room) == ([], [], 0)


# Collectives -------------------------------------------------------------------------------------


def joiners(chosen, world_size, num_samples):
    """Who gives its weights to all at the end of an epoch, or of the run."""
    found = program(DDP(join=True), chosen, world_size, num_samples)
    return {op.root for plan in found.plans for op in ops_of(plan, Broadcast)}


def test_the_last_rank_to_go_on_gives_its_weights_to_all():
    uneven = workload(samples_per_rank=[2, 8, 8, 4])
    assert joiners(uneven, 4, 64) == {2}


@for_each(
    ("parts", "options", "last"),
    [
        ([7, 8], {}, 1),
        ([9, 8], {}, 0),
        ([8, 7], {}, 1),  # equally many steps of 2 samples: the larger rank
        ([8, 7], {"drop_last": True}, 0),
        ([9, 8], {"drop_last": True}, 1),
        ([9, 12], {"grad_accum": 4}, 1),
        ([17, 12], {"grad_accum": 4}, 0),
    ],
)
def test_the_last_to_go_on_is_the_one_with_the_most_steps(parts, options, last):
    assert joiners(workload(samples_per_rank=parts, **options), 2, 64) == {last}


@given(
    parts=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    accumulate=st.one_of(st.integers(1, 3), st.lists(st.integers(1, 3), min_size=1, max_size=3)),
    drop_last=st.booleans(),
)
def test_it_has_samples_in_the_last_step_of_an_epoch(parts, accumulate, drop_last):
    options = {"microbatch": None} if isinstance(accumulate, list) else {}
    chosen = workload(samples_per_rank=parts, grad_accum=accumulate, drop_last=drop_last, **options)
    if drop_last and max(parts) < chosen.samples_per_step(1):
        return  # refused by the scenario
    *_, last = chosen.batches(len(parts), 0, None)
    there = [rank for rank, size in enumerate(last.sizes.sum(axis=0)) if size]
    assert joiners(chosen, len(parts), 64) == {there[-1]}
    assert last.closes_epoch


@for_each(
    "options",
    [
        {},
        {"drop_last": True},
        {"samples_per_rank": [6, 9, 3, 8]},
        {"samples_per_rank": [6, 9, 3, 8], "drop_last": True},
        {"microbatch": None, "global_batch": 6},
        {"microbatch": None, "global_batch": 6, "grad_accum": 2},
        {"microbatch": None, "global_batch": 40},
    ],
)
@for_each("steps", [None, 1, 2, 3, 4, 9])
def test_a_run_may_end_within_an_epoch(options, steps):
    data = {"kind": "regression", "num_samples": 26}
    chosen = workload(**options, dataset=data, steps=steps)
    ends = [b for b in chosen.batches(4, 0, Path()) if b.closes_epoch]
    found = {int(np.flatnonzero(b.sizes.sum(axis=0)).max()) for b in ends}
    assert found == joiners(chosen, 4, 26)
