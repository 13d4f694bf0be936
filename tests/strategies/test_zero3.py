"""ZeRO-3: what is gathered when, how much of it stays, and the bytes per parameter of the paper."""

import numpy as np
import pytest
from draws import draws
from every_strategy import run_of, scenario
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from sharded_runs import elements, play, sent, spans
from small_workload import workload

from simdp.strategies.zero import Zero3

NOTHING_STAYS = {"kind": "zero3", "param_persistence_threshold": 0, "max_reuse_distance": 0}
MIXED = {
    "optimizer": {"kind": "adam", "lr": 0.01},
    "precision": {"kind": "mixed", "dtype": "bfloat16"},
}


def gathers(result, step=1):
    return [s.name for s in spans(result, step) if s.name.startswith("all_gather")]


@draws(4, 10)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(1, 3))
def test_three_parameters_are_sent_where_nothing_stays(widths, accumulate):
    widths = [4 * width for width in widths]  # every tensor divides by the ranks
    result = play(
        {**NOTHING_STAYS, "prefetch_bucket_size": 0}, 4, widths=widths, grad_accum=accumulate
    )
    wanted = accumulate * 3 * 3 / 4 * 8 * elements(widths)
    assert sent(result) == pytest.approx([wanted] * 4, rel=1e-12)


def test_what_is_used_again_soon_stays_until_its_backward():
    alone = {**NOTHING_STAYS, "prefetch_bucket_size": 0}
    modules = [f"layers.{number}.weight and 1 more" for number in (0, 1, 2, 2, 1, 0)]
    assert gathers(play(alone, 2)) == [f"all_gather {name}" for name in modules]
    # The last module's next use comes first; the one before it is 14 elements further on.
    assert len(gathers(play({**alone, "max_reuse_distance": 1}, 2))) == 5
    assert len(gathers(play({**alone, "max_reuse_distance": 15}, 2))) == 5
    assert len(gathers(play({**alone, "max_reuse_distance": 1000}, 2))) == 3


def test_the_first_step_fetches_nothing_ahead():
    result = play(NOTHING_STAYS, 2)
    names = gathers(result, 0)
    assert len(names) == 6
    assert names[3:] == names[:3][::-1]
    assert len(gathers(result, 1)) < 6


def test_so_many_elements_are_fetched_ahead():
    one_by_one = gathers(play({**NOTHING_STAYS, "prefetch_bucket_size": 1}, 2))
    names = [f"layers.{number}.{kind}" for number in (1, 2) for kind in ("weight", "bias")]
    assert one_by_one[1:5] == [f"all_gather {name}" for name in names]
    # 54 + 12 elements are more than 60: then the last bias waits for the next module.
    some = gathers(play({**NOTHING_STAYS, "prefetch_bucket_size": 60}, 2))
    assert some[1] == "all_gather layers.1.weight and 2 more"
    # What has been looked at far ahead is kept until then.
    assert len(gathers(play(NOTHING_STAYS, 2))) == 2


def test_nothing_is_fetched_ahead_beyond_what_may_live():
    wide = {**NOTHING_STAYS, "max_live_parameters": 10}
    assert len(gathers(play(wide, 2))) == 6


def test_small_parameters_stay_everywhere_and_are_gathered_after_the_update():
    result = play({**NOTHING_STAYS, "param_persistence_threshold": 8}, 2)
    last = max(spans(result), key=lambda s: s.start)
    assert last.name.startswith("all_gather")
    assert "2 more" in last.name
    alone = play({**NOTHING_STAYS, "param_persistence_threshold": 10**6}, 2)
    assert len(gathers(alone)) == 1
    assert sent(alone)[0] == pytest.approx(2 * 8 / 2 * elements([5, 8, 6, 2]), rel=0.1)


def test_a_buffer_for_gradients_stays():
    small = play({"kind": "zero3", "reduce_bucket_size": 1000}, 2).metrics["memory_bytes"]
    assert small["buckets"] == 8 * 1000


@for_each(
    ("strategy", "formula"),
    [
        ({"kind": "ddp"}, lambda n: 2 + 2 + 12),
        ({"kind": "zero1", "communication": "deepspeed"}, lambda n: 2 + 2 + 12 / n),
        ({"kind": "zero2", "communication": "deepspeed"}, lambda n: 2 + 14 / n),
        (NOTHING_STAYS, lambda n: 16 / n),
    ],
)
@for_each("n", [2, 4, 8])
def test_memory_follows_the_papers_formulas(strategy, formula, n):
    model = {"model": {"kind": "mlp", "widths": [64, 64, 64, 64]}}
    footprint = run_of(scenario(strategy, world_size=n, **model, **MIXED)).memory.footprint
    names = footprint.facts.ready_order
    found = footprint.parameters() + footprint.master() + footprint.state()
    found = np.max(found + sum(map(footprint.gradient, names)))
    assert found == pytest.approx(formula(n) * elements([64, 64, 64, 64]), rel=1e-12)


def test_a_step_that_is_skipped_gathers_nothing_anew():
    fault = {"inject": [{"kind": "inf", "step": 2, "rank": 0}]}
    scaled = {"precision": {"kind": "amp", "dtype": "float16"}, "dtype": "float32"}
    result = play({"kind": "zero3"}, 2, steps=3, **fault, **scaled)
    assert [len(gathers(result, step)) for step in range(3)] == [1, 0, 1]
    assert result.metrics["replicas_identical"]


def test_ranks_with_different_numbers_of_samples_are_refused():
    wrong = Zero3().problem_with(2, workload(samples_per_rank=[3, 5]))
    assert "ranks have different numbers of samples" in wrong
