"""Kinds of steps: all that a run has, and how many, found without dealing its data."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from simdp.workload import Workload
from simdp.workload.sampling import START, Start

MODEL = {"kind": "mlp", "widths": [2, 1]}
MAX_STEPS = 2000
accumulations = st.one_of(st.integers(1, 4), st.lists(st.integers(1, 4), min_size=1, max_size=3))


@st.composite
def runs(draw):
    """A workload, a number of ranks and the samples of its data set."""
    num_samples, world_size = draw(st.integers(1, 70)), draw(st.integers(1, 6))
    accumulate = draw(accumulations)
    raw = {"model": MODEL, "dataset": {"kind": "regression", "num_samples": num_samples}}
    raw |= {"grad_accum": accumulate, "drop_last": draw(st.booleans())}
    raw |= {draw(st.sampled_from(["steps", "epochs"])): draw(st.integers(1, 25))}
    how = draw(st.sampled_from(["even", "uneven", "global"]))
    if how == "global":
        sized = isinstance(accumulate, list)
        raw["global_batch"] = sum(accumulate) * world_size if sized else draw(st.integers(1, 30))
    elif isinstance(accumulate, int):
        raw["microbatch"] = draw(st.integers(1, 5))
    if how == "uneven":
        parts = draw(st.lists(st.integers(1, 20), min_size=world_size, max_size=world_size))
        assume(sum(parts) <= num_samples)
        raw["samples_per_rank"] = parts
    workload = Workload.model_validate(raw)
    epoch = workload.steps_of_epoch(np.arange(num_samples), world_size)
    assume(next(epoch, None) is not None)  # the scenario's checks refuse others
    return workload, world_size, num_samples


def kind_of(batches):
    return batches.sizes.tolist(), batches.closes_epoch


def assert_all_are_known(workload, world_size, num_samples, start=START):
    kinds, num_steps = workload.kinds_of_steps(world_size, num_samples, start)
    run = workload.batches(world_size, 0, Path(), start)
    played = [kind_of(batches) for batches in islice(run, MAX_STEPS)]
    assert len(played) == num_steps - start.num_steps
    assert workload.num_steps(world_size, Path(), start) == num_steps
    known = [kind_of(batches) for batches in kinds]
    assert [kind for kind in played if kind not in known] == []
    assert [kind for kind in known if known.count(kind) > 1] == []
    if played:
        assert played[0][0] == known[0][0]


@pytest.mark.slow
@given(run=runs())
def test_every_step_of_a_run_is_of_a_kind_that_is_known_before(run):
    assert_all_are_known(*run)


@pytest.mark.slow
@given(run=runs(), epoch=st.integers(0, 3), done=st.integers(0, 30), dealt=st.integers(0, 69))
def test_so_is_every_step_of_a_run_that_goes_on(run, epoch, done, dealt):
    workload, world_size, num_samples = run
    assume(workload.samples_per_rank is None)  # these go on on the cluster that they began on
    dealt %= num_samples
    done = max(done, 1) if epoch or dealt else 0
    assume(done < workload.steps if workload.steps else epoch < workload.epochs)
    assert_all_are_known(workload, world_size, num_samples, Start(epoch, dealt, done))


@given(world_size=st.integers(1, 9), steps=st.one_of(st.none(), st.integers(1, 9)))
def test_steps_without_data_are_full_and_the_last_one_closes(world_size, steps):
    batch = {"microbatch": 3, "grad_accum": 2}
    measured = {"kind": "measured", "points": [{"microbatch": 3, "step_time": "1 ms"}]}
    raw = {"model": MODEL, "compute": measured, "dataset": "none", "steps": steps}
    workload = Workload.model_validate(raw | batch)
    assert_all_are_known(workload, world_size, 0)
    kinds, num_steps = workload.kinds_of_steps(world_size, 0)
    assert [kind.sizes.tolist() for kind in kinds] == [[[3] * world_size] * 2] * len(kinds)
    assert len(kinds) == min(num_steps, 2)
