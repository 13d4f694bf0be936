"""FSDP: when units come and go on the clock, what they take of memory, and what is refused."""

import numpy as np
import pytest
from for_each import for_each
from pydantic import ValidationError
from sharded_runs import play, sent, spans
from small_workload import LINEAR, workload

from simdp.errors import ScenarioError
from simdp.results.memory import MEMORY_PARTS
from simdp.strategies.fsdp import FSDP, divisors

WIDTH, DEPTH = 1024, 6
DEEP = {
    "widths": [WIDTH] * (DEPTH + 1),
    "microbatch": 256,
    "dtype": "float32",
    "numerics": False,
}
SLOW_LINKS = {"link": {"alpha": "1 us", "bandwidth": "5 GB/s"}}
FAST_LINKS = {"link": {"alpha": "1 us", "bandwidth": "900 GB/s"}}
UNIT = WIDTH * (WIDTH + 1)


def step(cluster=None, **options):
    return play({"kind": "fsdp", **options}, 4, cluster, **DEEP)


def named(result, lead, lane="comm"):
    """Spans of a step on rank 0 whose names begin so."""
    every = [s for s in result.trace.spans if s.rank == 0 and s.step == 1 and s.lane == lane]
    return [s for s in every if s.name.startswith(lead)]


def compute(result, activity):
    every = [s for s in result.trace.spans if s.rank == 0 and s.step == 1]
    return [s for s in every if s.lane == "compute" and s.activity == activity]


# The clock --------------------------------------------------------------------------------------


@for_each("cluster", [SLOW_LINKS, FAST_LINKS])
def test_a_gather_starts_when_the_unit_but_one_before_it_is_copied_out(cluster):
    result = step(cluster)
    gathers = named(result, "all_gather")[:DEPTH]
    copies = compute(result, "copy")[:DEPTH]
    assert [s.name for s in copies] == [f"layers.{n}" for n in range(DEPTH)]
    for number in range(2, DEPTH):
        ready = max(copies[number - 2].end, gathers[number - 1].end)
        # The pieces are copied in on a stream of their own, which takes a moment.
        assert ready <= gathers[number].start <= ready + 2e-5
    for gather, copy in zip(gathers, copies, strict=True):
        assert copy.start >= gather.end - 1e-15


def test_forward_prefetch_lets_more_gathers_start_early():
    for ahead, before in ((1, 2), (3, 4), (5, 6)):
        result = step(FAST_LINKS, forward_prefetch=ahead)
        first = compute(result, "copy")[0].end
        early = [s for s in named(result, "all_gather") if s.start < first]
        assert len(early) <= before
        found = named(result, "all_gather")
        assert found[before].start >= first - 1e-15
    peaks = [step(forward_prefetch=n).metrics["peak_memory_bytes"][0] for n in (1, 4)]
    assert peaks[1] >= peaks[0]


def test_backward_gathers_one_unit_while_another_one_computes():
    result = step(FAST_LINKS)
    gathers, copies = named(result, "all_gather")[DEPTH:], compute(result, "copy")
    outs = [s for s in copies if not s.name.endswith("gradients")][DEPTH:]
    assert [s.name for s in outs] == [f"layers.{n}" for n in reversed(range(DEPTH))]
    for number in range(1, DEPTH):
        assert gathers[number].start >= outs[number - 1].end - 1e-15


def test_gathers_and_sums_take_turns_in_torchs_order():
    found = [s.name for s in spans(step(SLOW_LINKS))[DEPTH:]]
    order = [
        name.replace("all_gather layers.", "").replace("reduce_scatter layers.", "R")
        for name in found
    ]
    assert " ".join(order) == "5 4 R5 3 R4 2 R3 1 R2 0 R1 R0"


def test_one_sum_is_under_way_at_a_time_before_the_next_gradients_are_copied_in():
    result = step(SLOW_LINKS)
    sums = named(result, "reduce_scatter")
    copies = [s for s in compute(result, "copy") if s.name.endswith("gradients")]
    for before, copy in zip(sums, copies[1:], strict=False):
        assert copy.start >= before.end - 1e-15


def test_copies_take_the_devices_memory():
    result = step(param_dtype="bfloat16", reduce_dtype="float32")
    copies = compute(result, "copy")
    bandwidth = 2 * 2 * UNIT / (copies[0].end - copies[0].start)
    for copy in copies:
        moved = (2 + 4) * UNIT if copy.name.endswith("gradients") else 2 * 2 * UNIT
        assert copy.nbytes == pytest.approx(moved)
        assert copy.end - copy.start == pytest.approx(moved / bandwidth)


def test_replicas_of_shards_sum_on_a_stream_of_their_own():
    cluster = {
        "devices_per_node": 2,
        "inter_node": {
            "topology": "switch",
            "link": {"alpha": "10 us", "bandwidth": "5 GB/s"},
            "links_per_node": 2,
        },
    }
    options = {"kind": "hsdp", "param_dtype": "bfloat16", "reduce_dtype": "float32"}
    result = play(options, 4, cluster, **DEEP)
    across = named(result, "all_reduce", "comm 2")
    assert len(across) == DEPTH
    # The padded rows of a unit, in the dtype in which gradients travel.
    assert across[0].nbytes == pytest.approx(4 * UNIT / 2)


# Bytes ------------------------------------------------------------------------------------------


def test_rows_are_filled_up_and_sent_so():
    # Of 3 rows four ranks have one each, but for the last.
    model = {"kind": "sequential", "layers": [LINEAR], "input_shape": [4]}
    result = play({"kind": "fsdp", "units": "whole"}, 4, model=model)
    padded = 4 * 4 + 4
    assert result.metrics["bucket_bytes"] == [8 * padded]
    assert sent(result) == pytest.approx([2 * 3 / 4 * 8 * padded] * 4)


def test_a_few_ranks_may_keep_a_unit_together_between_forward_and_backward():
    among = {kept: step(reshard_after_forward=kept) for kept in (True, 2, False)}
    all_of = 4 * UNIT * DEPTH
    for kept, share in ((True, 3 * 3 / 4), (2, 2 * 3 / 4 + 1 / 2), (False, 2 * 3 / 4)):
        assert sent(among[kept]) == pytest.approx([share * all_of] * 4)
    peaks = [result.metrics["peak_memory_bytes"][0] for result in among.values()]
    assert peaks == sorted(peaks)
    assert sent(step(reshard_after_forward=4)) == sent(among[True])
    assert sent(step(reshard_after_forward=1)) == sent(among[False])


def test_micro_steps_may_leave_their_gradients_to_the_last_one():
    twice = {**DEEP, "microbatch": 8, "grad_accum": 2}
    every, last = (play({"kind": "fsdp", "sync": when}, 4, **twice) for when in ("every", "last"))
    stay = {"reshard_after_backward": False, "reshard_after_forward": False}
    kept = play({"kind": "fsdp", "sync": "last", **stay}, 4, **twice)
    sums = [len(named(result, "reduce_scatter")) for result in (every, last, kept)]
    assert sums == [2 * DEPTH, DEPTH, DEPTH]
    # The last backward gathers once more what it has freed, since forward came there twice.
    assert len(named(kept, "all_gather")) == DEPTH + 1
    # Whole gradients of all units are there meanwhile.
    assert last.metrics["peak_memory_bytes"][0] > every.metrics["peak_memory_bytes"][0]


# Memory -----------------------------------------------------------------------------------------


def test_a_rank_takes_what_torchs_buffers_do():
    low = {"param_dtype": "bfloat16", "reduce_dtype": "float32"}
    adam = {"optimizer": {"kind": "adamw", "lr": 1e-3}}
    world_size, few = 4, {**DEEP, "microbatch": 1}
    result = play({"kind": "fsdp", **low}, world_size, **few, **adam)
    memory, all_of = result.metrics["memory_bytes"], UNIT * DEPTH
    assert memory["parameters"] == 4 * all_of / world_size  # which are the master weights
    assert memory["optimizer_state"] == pytest.approx(8 * all_of / world_size, rel=1e-3)
    # Backward of the last unit but one and later: the unit, the next one's buffer, its gradients
    # in both dtypes, their sums; and all sums so far.
    b, r = 2 * UNIT, 4 * UNIT
    lasting = 12 * all_of / world_size
    gradients = 4 * all_of / world_size
    most = lasting + gradients + max(2 * b + b, b + b + r)
    least = lasting + b + b + r
    assert least <= result.metrics["peak_memory_bytes"][0] <= 1.05 * most


def test_forward_holds_a_unit_and_two_buffers():
    inside = {"microbatch": 1, "optimizer": "none"}
    result = play({"kind": "fsdp"}, 4, FAST_LINKS, **{**DEEP, **inside})
    gathered = [h for h in result.trace.memory if h.part == MEMORY_PARTS.index("gathered")]
    sizes = [float(np.asarray(h.nbytes).flat[0]) for h in gathered if 0 in h.ranks]
    assert sum(sizes) == 0
    most = max(np.cumsum(sizes))
    assert most == pytest.approx(3 * 4 * UNIT, rel=1e-3)


# The host ---------------------------------------------------------------------------------------


def test_rows_gradients_and_the_optimizer_may_be_the_hosts():
    link = {"alpha": "10 us", "bandwidth": "20 GB/s"}
    cluster = {**FAST_LINKS, "host": {"link": link, "memory_bandwidth": "100 GB/s"}}
    plain, moved = (step(cluster, offload=where) for where in ("none", "cpu"))
    memory = moved.metrics["memory_bytes"]
    assert memory["parameters"] == memory["optimizer_state"] == 0
    assert memory["gradients"] <= 4 * UNIT  # whole ones, until they are summed
    assert sent(moved) == sent(plain)
    pairs = zip(*(named(result, "all_gather") for result in (plain, moved)), strict=True)
    crossing = 1e-5 + UNIT / 20e9  # a fourth of a unit in 32 bits
    for alone, behind in pairs:  # the copy is on the stream of the gather
        longer = (behind.end - behind.start) - (alone.end - alone.start)
        assert longer == pytest.approx(crossing, abs=1e-9)
    (last,) = [s for s in compute(moved, "copy") if s.name == "gradients"]
    assert last.end - last.start == pytest.approx(crossing)
    update = compute(moved, "update")
    assert update[-1].end - update[-1].start == pytest.approx(update[-1].nbytes * 4 / 100e9)
    learned = [play({"kind": "fsdp", "offload": where}, 3).replicas[0] for where in ("none", "cpu")]
    assert all((learned[0][name] == own).all() for name, own in learned[1].items())


# What is refused --------------------------------------------------------------------------------


def test_a_number_of_ranks_that_does_not_divide_those_of_a_unit_is_refused():
    wrong = FSDP(reshard_after_forward=3).problem_with(4, workload())
    assert wrong == (
        "reshard_after_forward: 3 does not divide the 4 ranks that share a unit; use true, false "
        "or one of 1, 2, 4."
    )
    assert FSDP(reshard_after_forward=2).problem_with(4, workload()) is None


@for_each("value", ["root", "false", 0, -2, 1.5])
def test_when_units_are_freed_is_told_by_two_words_or_a_number(value):
    with pytest.raises(ScenarioError) as caught:
        play({"kind": "fsdp", "reshard_after_forward": value}, 2)
    assert caught.value.problems == [
        f"strategy.reshard_after_forward: {value!r} is not allowed; write true, false or a number "
        "of ranks."
    ]


def test_a_dtype_of_layers_goes_with_float32_and_with_no_other_precision():
    low = FSDP(param_dtype="bfloat16")
    assert low.problem_with(2, workload(dtype="float64")) == (
        "param_dtype: bfloat16 needs float32 weights, but workload.dtype is float64; write "
        "workload.dtype: float32, or leave param_dtype out."
    )
    amp = {"kind": "amp", "dtype": "float16"}
    assert low.problem_with(2, workload(dtype="float32", precision=amp)) == (
        "param_dtype: bfloat16 contradicts workload.precision: amp of float16; leave one "
        "of them out."
    )
    assert low.problem_with(2, workload(dtype="float32")) is None


def test_sums_are_divided_as_torch_does():
    assert divisors(8, "float32") == (1.0, 8.0)
    assert divisors(8, "bfloat16") == (1.0, 8.0)
    found = [divisors(n, "float16")[0] for n in (1, 2, 3, 4, 8, 16)]
    assert found[1:5] == [2.0, 2.0, 2.0, 4.0]
    assert all(a * b == n for n in (2, 4, 6, 8) for a, b in [divisors(n, "float64")])


def test_the_words_of_the_first_version_are_told_where_they_belong():
    with pytest.raises(ValidationError, match=r"kind: fsdp1\}, which takes backward_pre"):
        FSDP(backward_prefetch="none")
