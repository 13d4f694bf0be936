"""FSDP: when units come and go, what that costs and saves, and what is refused."""

from itertools import pairwise

import pytest
from draws import draws
from for_each import for_each, one_in
from hypothesis import given
from hypothesis import strategies as st
from sharded_runs import elements, play, sent, spans
from small_workload import LINEAR, workload

from simdp.errors import ScenarioError
from simdp.results.memory import MEMORY_PARTS
from simdp.strategies.fsdp1 import FSDP1

DEEP = {"widths": [1024] * 7, "microbatch": 256, "dtype": "float32", "numerics": False}
SLOW_DEVICES = {
    "device": {"peak": {"float32": "1 TFLOP/s"}, "memory": "10 GB", "memory_bandwidth": "1 TB/s"}
}
SLOW_LINKS = {"link": {"alpha": "1 us", "bandwidth": "5 GB/s"}}
PLAIN = {"kind": "einsum", "equation": "bd,df->bf", "d": 6, "f": 4}
STARVED = {"link": {"alpha": "1 us", "bandwidth": "50 MB/s"}}


def step(cluster=None, **options):
    return play({"kind": "fsdp1", **options}, 4, cluster, **DEEP)


def seconds(cluster=None, **options):
    return step(cluster, **options).metrics["step_time_s"]


@pytest.mark.slow
@draws(4, 10)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.integers(1, 5), st.integers(1, 2))
def test_three_parameters_pass_in_every_micro_step(widths, world_size, accumulate):
    result = play("fsdp1", world_size, widths=widths, grad_accum=accumulate)
    share = (world_size - 1) / world_size
    wanted = 3 * accumulate * share * 8 * elements(widths)
    assert sent(result) == pytest.approx([wanted] * world_size, rel=1e-12)


def test_clipping_sends_one_number_more():
    plain, clipped = (play("fsdp1", 3, clip_grad_norm=limit) for limit in (None, 1.0))
    more = [a - b for a, b in zip(sent(clipped), sent(plain), strict=True)]
    assert more == pytest.approx([2 * 2 / 3 * 4] * 3)
    assert spans(clipped)[-1].name == "all_reduce gradient norm"


def test_parameters_that_stay_after_forward_are_gathered_once():
    result = play({"kind": "fsdp1", "sharding_strategy": "SHARD_GRAD_OP"}, 3)
    assert sent(result) == pytest.approx([2 * 2 / 3 * 8 * elements([5, 8, 6, 2])] * 3, rel=1e-12)


def test_only_the_roots_parameters_stay_under_full_shard():
    layers = [{**LINEAR, "name": "block.0"}, {**LINEAR, "name": "head", "in_features": 3}]
    model = {"kind": "sequential", "layers": layers, "input_shape": [4]}
    all_of, root = 8 * (15 + 12), 8 * 12
    for asked, wanted in (("FULL_SHARD", 3 * all_of - root), ("SHARD_GRAD_OP", 2 * all_of)):
        result = play({"kind": "fsdp1", "sharding_strategy": asked}, 2, model=model)
        assert sent(result) == pytest.approx([wanted / 2] * 2, rel=1e-12)


def test_two_units_are_gathered_ahead_and_a_third_when_the_first_is_freed():
    found = [s for s in spans(step()) if s.name.startswith("all_gather")][:6]
    forward = [s for s in step().trace.spans if s.activity == "forward" and s.rank == 0]
    forward = [s for s in forward if s.step == 1 and s.name.startswith("layers")]
    assert found[1].start == pytest.approx(found[0].end)
    ready = [max(forward[i].end, found[i + 1].end) for i in range(4)]
    assert [s.start for s in found[2:]] == pytest.approx(ready)


def test_the_host_may_be_one_unit_further_ahead_with_forward_prefetch():
    found = [s for s in spans(step(forward_prefetch=True)) if s.name.startswith("all_gather")]
    assert found[2].start == pytest.approx(found[1].end)
    plain, ahead = (
        play({"kind": "fsdp1", "forward_prefetch": asked}, 4, SLOW_DEVICES, **DEEP).metrics
        for asked in (False, True)
    )
    assert ahead["peak_memory_bytes"][0] >= plain["peak_memory_bytes"][0]


def test_backward_gathers_the_next_unit_before_after_or_when_it_is_needed():
    for cluster, factor in ((None, 1.02), (SLOW_LINKS, 1.005)):
        late, between, early = (
            seconds(cluster, backward_prefetch=when)
            for when in ("none", "backward_post", "backward_pre")
        )
        assert late > factor * between > factor**2 * early


@for_each(
    ("when", "order"),
    [
        ("backward_pre", "5 4 R5 3 R4 2 R3 1 R2 0 R1 R0"),
        ("backward_post", "5 4 R5 3 R4 2 R3 1 R2 0 R1 R0"),
        ("none", "5 R5 4 R4 3 R3 2 R2 1 R1 0 R0"),
    ],
)
def test_gathers_and_sums_take_turns_on_one_stream_in_the_order_of_the_host(when, order):
    found = spans(step(backward_prefetch=when))[6:]
    # Unit 0 would be the root, which has nothing here.
    names = [s.name.replace("reduce_scatter unit ", "R").split()[-1] for s in found]
    numbers = [
        f"R{int(name[1:]) - 1}" if name.startswith("R") else str(int(name) - 1) for name in names
    ]
    assert " ".join(numbers) == order
    for before, after in pairwise(found):
        assert after.start >= before.end - 1e-12


def test_prefetched_units_take_memory_while_they_wait():
    peaks = [
        step(SLOW_LINKS, backward_prefetch=when).metrics["peak_memory_bytes"][0]
        for when in ("backward_pre", "none")
    ]
    assert peaks[0] > peaks[1]


def test_without_the_limit_forward_gathers_everything_at_once():
    limited, free = (step(limit_all_gathers=limit) for limit in (True, False))
    units = 6 * 4 * 1024 * 1025
    peaks = [result.metrics["peak_memory_bytes"][0] for result in (limited, free)]
    assert peaks[1] > peaks[0]
    assert limited.metrics["memory_bytes"]["other"] < units < free.metrics["memory_bytes"]["other"]
    assert free.metrics["step_time_s"] <= limited.metrics["step_time_s"]


def test_compute_hides_gathers_and_sums():
    hidden = step(SLOW_DEVICES).metrics
    bare = step(STARVED).metrics
    assert hidden["exposed_comm_s"] < 0.3 * hidden["comm_s"]
    assert bare["exposed_comm_s"] > 0.9 * bare["comm_s"]


def test_one_unit_hides_nothing_and_needs_room_for_the_whole_model():
    # A unit that is the root's is gathered once, which FULL_SHARD would make of the whole.
    blocks, whole = (
        step(units=units, sharding_strategy="SHARD_GRAD_OP").metrics
        for units in ("blocks", "whole")
    )
    assert whole["step_time_s"] > blocks["step_time_s"]
    blocks = step().metrics
    assert whole["peak_memory_bytes"][0] > 1.5 * blocks["peak_memory_bytes"][0]


def test_units_may_be_named_and_the_rest_is_the_roots():
    result = play({"kind": "fsdp1", "units": ["layers.1"]}, 2)
    inner, rest = 8 * (8 * 6 + 6), 8 * (5 * 8 + 8 + 6 * 2 + 2)
    assert result.metrics["bucket_bytes"] == [inner, rest]


def test_a_model_without_blocks_is_one_unit():
    result = play({"kind": "fsdp1"}, 2, model=PLAIN)
    assert result.metrics["bucket_bytes"] == [8 * 6 * 4]


def test_what_a_rank_keeps_shrinks_with_the_number_of_ranks():
    memory = {
        n: play("fsdp1", n, optimizer={"kind": "adam"}, **DEEP).metrics["memory_bytes"]
        for n in (2, 8)
    }
    for part in ("parameters", "optimizer_state"):
        assert memory[2][part] == pytest.approx(4 * memory[8][part], rel=1e-6)


def test_names_that_are_of_no_module_are_refused_with_those_there_are():
    mlp = workload(model={"kind": "mlp", "widths": [4, 5, 3]})
    wrong = FSDP1(units=("layers.7",)).problem_with(2, mlp)
    assert wrong == (
        "units: no module 'layers.7' has parameters of its own; the model's blocks: layers.0, "
        "layers.1. Name modules, or write units: blocks or units: whole."
    )
    assert "the model has no blocks" in FSDP1(units=("x",)).problem_with(2, workload(model=PLAIN))
    assert FSDP1(units=("layers.1",)).problem_with(2, mlp) is None


def test_groups_are_of_hybrid_strategies_alone():
    wrong = FSDP1(shard_size=2).problem_with(4, workload())
    assert wrong == (
        "shard_size: 2 is an option of groups, but FULL_SHARD has none; leave it out, or write "
        "sharding_strategy: HYBRID_SHARD."
    )
    hybrid = FSDP1(sharding_strategy="HYBRID_SHARD", shard_size=3)
    assert "shard_size: 3 does not divide the 4 ranks" in hybrid.problem_with(4, workload())


@for_each("value", ["blok", 3])
def test_units_are_told_by_a_word_or_by_names(value):
    with pytest.raises(ScenarioError) as caught:
        play({"kind": "fsdp1", "units": value}, 2)
    assert caught.value.problems == [
        f"strategy.units: {value!r} is not allowed; write blocks, torchtitan, whole or a list of "
        "modules' names."
    ]


def test_ranks_with_different_numbers_of_samples_are_refused():
    wrong = FSDP1().problem_with(2, workload(samples_per_rank=[3, 5]))
    assert "ranks have different numbers of samples" in wrong


@pytest.mark.slow
@pytest.mark.parametrize("when", one_in(3, ["backward_pre", "none", "backward_post"]))
def test_what_the_root_ends_after_is_not_gathered_again(when):
    """The embedding is the root's, and its backward is the last: all blocks are through."""
    result = play(
        {"kind": "fsdp1", "backward_prefetch": when},
        4,
        model={"kind": "gpt2", "sequence_length": 8},
        dataset={"kind": "tokens", "num_samples": 64},
        dtype="float32",
        numerics=False,
        steps=3,
    )
    on_rank = [s for s in result.trace.spans if s.rank == 0 and s.step == 1 and s.lane == "comm"]
    gathers = [s.name for s in on_rank if s.name.startswith("all_gather unit")]
    assert len(gathers) == 2 * 12 + 1
    assert gathers.count("all_gather unit 0") == 1
    part = MEMORY_PARTS.index("gathered")
    assert sum(h.nbytes for h in result.trace.memory if h.part == part and 0 in h.ranks) == 0
