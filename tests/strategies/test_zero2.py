"""ZeRO-2: two parameters' worth of bytes for every reduction, and gradients in pieces."""

import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from sharded_runs import elements, play, sent, spans
from small_workload import workload

from simdp.strategies.zero import Zero2


@draws(4, 10)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.integers(1, 5), st.integers(1, 3))
def test_gradients_are_summed_in_every_micro_step_and_parameters_gathered_once(
    widths, world_size, accumulate
):
    result = play("zero2", world_size, widths=widths, grad_accum=accumulate)
    share = (world_size - 1) / world_size
    wanted = (accumulate + 1) * share * 8 * elements(widths)
    assert sent(result) == pytest.approx([wanted] * world_size, rel=1e-12)
    if world_size > 1:
        assert sum(result.metrics["bucket_bytes"]) == 8 * elements(widths)


def test_buckets_leave_in_the_order_of_backward_while_it_runs():
    deep = play({"kind": "zero2", "bucket_cap": "0 B"}, 2, widths=[64] * 6)
    names = [s.name for s in spans(deep)]
    reduced = [name for name in names if name.startswith("reduce_scatter")]
    assert reduced == [f"reduce_scatter bucket {number}" for number in range(10)]
    late = play({"kind": "zero2", "bucket_cap": "0 B", "overlap": False}, 2, widths=[64] * 6)
    assert late.metrics["exposed_comm_s"] > deep.metrics["exposed_comm_s"]


def test_gradients_take_a_part_of_what_they_take_with_ddp():
    ddp, zero2 = (play(kind, 4).metrics["memory_bytes"] for kind in ("ddp", "zero2"))
    assert zero2["parameters"] == ddp["parameters"]
    assert zero2["gradients"] == pytest.approx(ddp["gradients"] / 4, abs=1)


def test_ranks_with_different_numbers_of_samples_are_refused():
    wrong = Zero2().problem_with(2, workload(samples_per_rank=[3, 5]))
    assert "ranks have different numbers of samples" in wrong
