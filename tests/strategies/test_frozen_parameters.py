"""What strategies send, and keep, of frozen parameters."""

import pytest
from for_each import for_each
from sharded_runs import WIDTHS, elements, play, sent, spans

from simdp.results.memory import MEMORY_PARTS, usage

FIRST, SECOND, LAST = 5 * 8 + 8, 8 * 6 + 6, 6 * 2 + 2
FLOAT = 8
BELOW, MIDDLE = ["layers.0.*"], ["layers.1.*"]
DEEPSPEED = {"communication": "deepspeed", "reduce_bucket_size": 10**6}


def moved(strategy, frozen, world_size=2, **workload):
    """Bytes that a rank of a ring of two sends in a step, over those of one whole pass."""
    return sent(play(strategy, world_size, frozen=frozen, **workload))[0] * 2


def named(strategy, frozen, **workload):
    result = play(strategy, 2, frozen=frozen, **workload)
    return [span.name for span in spans(result)]


@for_each("strategy", ["ddp", "apex", "horovod", "local_sgd"])
def test_replicas_send_no_more_than_what_learns(strategy):
    options = {"kind": strategy, **({"local_steps": 1} if strategy == "local_sgd" else {})}
    assert moved(options, MIDDLE) == 2 * FLOAT * (FIRST + LAST)


def test_zero_deals_and_hands_out_what_learns():
    for strategy, passes in (
        ({"kind": "zero1", "communication": "reduce_scatter"}, 2),
        ({"kind": "zero2"}, 2),
        ({"kind": "zero1", **DEEPSPEED}, 3),
        ({"kind": "zero2", **DEEPSPEED}, 3),
    ):
        assert moved(strategy, MIDDLE) == passes * FLOAT * (FIRST + LAST)
    assert moved("zero1", MIDDLE) >= 3 * FLOAT * (FIRST + LAST)  # whole tensors, from their owners


@for_each("kind", ["fsdp", "fsdp1"])
def test_a_frozen_unit_is_gathered_twice_and_never_summed(kind):
    found = named(kind, MIDDLE)
    assert sum(name.startswith("all_gather") for name in found) == 6
    sums = [name for name in found if name.startswith("reduce_scatter")]
    assert len(sums) == 2
    assert moved(kind, MIDDLE) == FLOAT * (3 * (FIRST + LAST) + 2 * SECOND)


@for_each("kind", ["fsdp", "fsdp1"])
def test_what_backward_never_reaches_is_gathered_for_forward_alone(kind):
    assert moved({"kind": kind}, BELOW) in (
        FLOAT * (3 * (SECOND + LAST) + FIRST),
        FLOAT * (3 * (SECOND + LAST) + 2 * FIRST),  # fetched ahead for nothing
    )


def test_fsdp1_frees_what_it_has_kept_of_such_a_unit_at_the_end():
    strategy = {"kind": "fsdp1", "sharding_strategy": "SHARD_GRAD_OP"}
    assert moved(strategy, BELOW, grad_accum=2) == 2 * FLOAT * (2 * (SECOND + LAST) + FIRST)


def test_fsdp1_sums_the_whole_flat_parameter_where_some_of_it_learns():
    assert moved("fsdp1", ["layers.1.weight"]) == 3 * FLOAT * elements(WIDTHS)


def test_fsdp_sums_the_parameters_that_learn():
    assert moved("fsdp", ["layers.1.weight"]) == FLOAT * (3 * elements(WIDTHS) - 48)


def test_zero3_fetches_frozen_parameters_and_sums_none():
    small = {"kind": "zero3", "param_persistence_threshold": 0, "max_reuse_distance": 0}
    small["prefetch_bucket_size"] = 0
    assert moved(small, MIDDLE) == FLOAT * (3 * (FIRST + LAST) + 2 * SECOND)


def test_find_unused_parameters_asks_of_what_learns():
    strategy = {"kind": "ddp", "find_unused_parameters": True}
    assert moved(strategy, MIDDLE) == 2 * (FLOAT * (FIRST + LAST) + 4 * 4)


@for_each(
    ("hook", "kept"),
    [
        ({"kind": "batched_power_sgd", "start_step": 1}, 1),
        ({"kind": "top_k", "ratio": 0.2}, 1),
        ({"kind": "power_sgd", "start_step": 1, "min_compression_rate": 10**6}, 1),
    ],
)
def test_hooks_keep_errors_of_what_learns(hook, kept):
    strategy = {"kind": "ddp", "comm_hook": hook, "bucket_cap": "1 GB"}
    whole, learned = (peak(strategy, frozen, "buckets") for frozen in ([], MIDDLE))
    assert whole - learned >= kept * FLOAT * SECOND


def peak(strategy, frozen, part, **workload):
    options = {"optimizer": "adam", "numerics": False, **workload}
    result = play(strategy, 2, frozen=frozen, **options)
    return usage(result.trace.memory, [0]).kept[:, MEMORY_PARTS.index(part)].max()


@for_each("kind", ["ddp", "fsdp1", "zero2", "zero3"])
def test_frozen_parameters_have_room_and_no_gradients_or_state(kind):
    share = 1 if kind == "ddp" else 2
    assert peak(kind, MIDDLE, "optimizer_state") == pytest.approx(
        2 * FLOAT * (FIRST + LAST) / share, rel=0.02
    )
    assert peak(kind, MIDDLE, "parameters") == pytest.approx(
        peak(kind, [], "parameters"), rel=1e-12
    )


def test_only_what_learns_has_master_weights():
    mixed = {"dtype": "float32", "precision": {"kind": "mixed", "dtype": "bfloat16"}}
    sgd = {"optimizer": "sgd", **mixed}
    for kind, share in (("ddp", 1), ("zero3", 2)):
        whole, learned = (peak(kind, frozen, "optimizer_state", **sgd) for frozen in ([], MIDDLE))
        assert whole - learned == pytest.approx(4 * SECOND / share, abs=8)
