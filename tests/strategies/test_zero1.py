"""ZeRO-1: what it sends in its two ways, and what it refuses."""

from itertools import pairwise

import pytest
from draws import draws
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from sharded_runs import elements, play, sent, spans
from small_scenario import FAST
from small_workload import LINEAR, workload

from simdp.strategies.zero import Zero1

PIECES = {"kind": "zero1", "communication": "reduce_scatter"}
MANY = {"kind": "regression", "num_samples": 2400}


@pytest.mark.slow
@draws(4, 10)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.integers(1, 5), st.integers(1, 2))
def test_all_reduce_sends_three_parameters_and_reduce_scatter_two(widths, world_size, accumulate):
    for strategy, times in (("zero1", 3), (PIECES, 2)):
        result = play(strategy, world_size, widths=widths, grad_accum=accumulate)
        share = (world_size - 1) / world_size
        mean = sum(sent(result)) / world_size  # a broadcast's last rank sends nothing
        assert mean == pytest.approx(times * share * 8 * elements(widths), rel=1e-12)


def test_ranks_send_alike_where_pieces_do():
    result = play(PIECES, 3)
    assert len(set(sent(result))) == 1


def test_every_parameter_is_broadcast_by_its_owner_or_all_of_an_owner_at_once():
    each = [s for s in spans(play("zero1", 3)) if s.name.startswith("broadcast")]
    assert len(each) == 6
    view = play({"kind": "zero1", "parameters_as_bucket_view": True}, 3)
    assert len([s for s in spans(view) if s.name.startswith("broadcast")]) == 3


def test_broadcasts_are_started_together_and_follow_each_other():
    found = [s for s in spans(play("zero1", 3), rank=1) if s.name.startswith("broadcast")]
    for before, after in pairwise(found):
        assert after.start >= before.end - 1e-15


def test_broadcasts_along_many_ranks_leave_no_span_for_every_transfer():
    for world_size, expected in ((32, True), (33, False)):
        trace = play("zero1", world_size, numerics=False, dataset=MANY).trace
        found = [s.name for s in trace.spans if s.activity == "transfer" and s.rank == 3]
        assert any(name.startswith("parameters") for name in found) is expected


def test_buffers_follow_rank_0_in_torchs_way_unless_told_otherwise():
    norm = {"kind": "batch_norm1d", "num_features": 3}
    model = {"kind": "sequential", "layers": [LINEAR, norm], "input_shape": [4]}
    for strategy, expected in (
        ({}, True),
        ({"broadcast_buffers": False}, False),
        ({"communication": "reduce_scatter"}, False),
    ):
        found = spans(play({"kind": "zero1", **strategy}, 2, model=model))
        assert any(s.name.startswith("broadcast buffers") for s in found) is expected


def test_nothing_is_handed_out_after_a_step_that_was_skipped():
    amp = {"kind": "amp", "dtype": "float16", "init_scale": 1024.0}
    inject = [{"kind": "inf", "rank": 1, "step": 2}]
    for strategy, name in (("zero1", "broadcast"), (PIECES, "all_gather")):
        result = play(strategy, 2, dtype="float32", precision=amp, inject=inject, steps=3)
        numbers = [
            sum(s.name.startswith(name) for s in spans(result, step=step)) for step in range(3)
        ]
        assert numbers[0] == numbers[2] > numbers[1] == 0


def test_norms_and_flags_of_pieces_are_summed_over_the_ranks():
    amp = {"kind": "amp", "dtype": "float16", "init_scale": 1024.0}
    options = {"dtype": "float32", "precision": amp, "clip_grad_norm": 1.0}
    names = [s.name for s in spans(play(PIECES, 2, **options))]
    assert [n for n in names if n.startswith("all_reduce")] == [
        "all_reduce inf or nan",
        "all_reduce gradient norm",
    ]
    plain = [s.name for s in spans(play("zero1", 2, **options))]
    assert all("bucket" in n for n in plain if n.startswith("all_reduce"))


def test_the_update_takes_as_long_as_the_ranks_own_part_of_it():
    device = {**FAST["device"], "launch": "0 s"}  # all have as many launches
    whole, quarter = (
        play(strategy, 4, {"device": device}, optimizer={"kind": "adam"}).metrics["update_s"]
        for strategy in ("ddp", PIECES)
    )
    assert quarter == pytest.approx(whole / 4, rel=0.1)


@for_each("key", ["parameters_as_bucket_view", "find_unused_parameters", "broadcast_buffers"])
def test_options_of_torchs_way_are_refused_with_the_other(key):
    with pytest.raises(ValidationError, match=f"{key} belongs to communication: all_reduce"):
        Zero1.model_validate({**PIECES, key: True})


def test_unused_parameters_are_refused_as_by_ddp():
    idle = {**LINEAR, "name": "idle"}
    model = {"kind": "sequential", "layers": [LINEAR, idle], "input_shape": [4]}
    unused = workload(model={**model, "unused": ["idle"]})
    assert "idle.weight gets no gradient" in Zero1().problem_with(2, unused)
    assert Zero1(find_unused_parameters=True).problem_with(2, unused) is None
    assert Zero1.model_validate(PIECES).problem_with(2, unused) is None


@for_each("strategy", [{}, PIECES])
def test_ranks_with_different_numbers_of_samples_are_refused(strategy):
    wrong = Zero1.model_validate(strategy).problem_with(2, workload(samples_per_rank=[3, 5]))
    assert "ranks have different numbers of samples" in wrong
    assert "use {kind: ddp, join: true}" in wrong
