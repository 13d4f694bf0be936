"""What comm hooks are called, what they refuse, and which gradients PowerSGD takes apart."""

from itertools import count

import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from recorded_mlp import WIDER, trained
from small_workload import program, workload

from simdp.steps.partition import Bucket
from simdp.strategies.comm_hooks import COMM_HOOKS, NoHook
from simdp.strategies.comm_hooks.compression import BatchedPowerSGD, PowerSGD, TopK, side_of
from simdp.strategies.ddp import DDP
from simdp.strategies.memory import host_memory_needed
from simdp.workload.layers.base import Parameter

OURS = [kind for kind in COMM_HOOKS if kind != "python"]
"""Those that need no file."""

HALF = {"dtype": "float32", "precision": {"kind": "amp", "dtype": "float16"}}
BROAD = {"dtype": "float32", "precision": {"kind": "amp", "dtype": "bfloat16"}}


def tensor(name, *shape):
    return Parameter(name, shape, 1.0)


# What is written ---------------------------------------------------------------------------------


@for_each("kind", OURS)
def test_a_hook_without_options_may_be_written_as_its_name(kind):
    short, long = DDP(comm_hook=kind), DDP(comm_hook={"kind": kind})
    assert short == long
    assert isinstance(short.comm_hook, COMM_HOOKS[kind])
    assert DDP.model_validate(short.model_dump()) == short


def test_without_a_hook_gradients_travel_as_they_are():
    assert DDP() == DDP(comm_hook="none")
    assert DDP().comm_hook == NoHook()
    assert NoHook().dtype is None


def test_an_unknown_hook_is_refused_with_a_hint(refuse):
    (line,) = refuse({"strategy.comm_hook": "fp61"})
    assert line == (
        "strategy.comm_hook: unknown comm_hook 'fp61'. Did you mean 'fp16'? Known: "
        "batched_power_sgd, bf16, bf16_wrapper, fp16, fp16_wrapper, none, noop, power_sgd, "
        "python, quantization_perchannel, ... and 2 more: simdp list comm_hooks."
    )


@for_each(
    ("options", "line"),
    [
        ({"kind": "top_k", "ratio": 0}, "ratio: 0 is out of range; it must be > 0.0."),
        ({"kind": "top_k", "ratio": 1.5}, "ratio: 1.5 is out of range; it must be <= 1.0."),
        ({"kind": "power_sgd", "rank": 0}, "rank: 0 is out of range; it must be >= 1."),
        (
            {"kind": "power_sgd", "start_step": -1},
            "start_step: -1 is out of range; it must be >= 0.",
        ),
        (
            {"kind": "power_sgd", "min_compression_rate": 0},
            "min_compression_rate: 0 is out of range; it must be > 0.0.",
        ),
        (
            {"kind": "power_sgd", "orthogonalization_epsilon": -1e-8},
            "orthogonalization_epsilon: -1e-08 is out of range; it must be >= 0.0.",
        ),
    ],
)
def test_options_out_of_range_are_refused(refuse, options, line):
    assert refuse({"strategy.comm_hook": options}) == [f"strategy.comm_hook.{line}"]


@for_each("kind", ["apex", "horovod", "local_sgd", "zero2"])
def test_strategies_that_take_no_hook_say_so(refuse, kind):
    (line,) = refuse(strategy={"kind": kind, "comm_hook": "fp16"})
    assert line.startswith("strategy: unknown key 'comm_hook'; known: ")


@for_each("kind", ["power_sgd", "top_k"])
def test_a_loss_scale_would_spoil_what_a_hook_keeps(kind):
    said = DDP(comm_hook=kind).problem_with(4, workload(**HALF))
    assert said == (
        f"comm_hook: {kind} would keep the effect of an inf gradient for all later steps, and a "
        "loss scale (precision: amp) causes such steps; use precision: "
        "{kind: amp, dtype: bfloat16}, or comm_hook: bf16."
    )
    assert DDP(comm_hook=kind).problem_with(4, workload(**BROAD)) is None


def test_a_hook_that_keeps_nothing_goes_with_a_loss_scale():
    forgetful = [
        PowerSGD(error_feedback=False, warm_start=False),
        TopK(error_feedback=False),
        *(COMM_HOOKS[kind]() for kind in ("none", "fp16", "bf16")),
    ]
    assert [hook.problem_with(workload(**HALF)) for hook in forgetful] == [None] * 5
    assert not any(program(DDP(comm_hook=hook)).keeps_errors for hook in forgetful)
    warm = PowerSGD(error_feedback=False)
    assert "power_sgd would keep" in warm.problem_with(workload(**HALF))


@for_each("kind", ["power_sgd", "top_k"])
def test_errors_take_memory_of_this_machine_too(kind):
    """As much as the parameters, on every rank."""
    kept, forgotten = (
        host_memory_needed(
            workload(), DDP(comm_hook={"kind": kind, "error_feedback": feedback}), 4, 2
        )
        for feedback in (True, False)
    )
    assert kept - forgotten == 4 * (3 * 4 + 3) * 4


def test_a_strategy_calls_what_its_hook_calls():
    asked = {kind: set(program(DDP(comm_hook=kind)).calls) for kind in OURS}
    for gathers in ("top_k", "quantization_perchannel", "quantization_pertensor"):
        assert asked.pop(gathers) == {("all_gather", 0), ("broadcast", 0)}
    assert asked.pop("noop") == {("broadcast", 0)}
    assert all(calls == {("all_reduce", 0), ("broadcast", 0)} for calls in asked.values())
    both = program(DDP(comm_hook="top_k", find_unused_parameters=True)).calls
    assert both[1:] == [("all_gather", 0), ("all_reduce", 0)]  # the map of used parameters


def test_a_sweep_may_go_over_short_and_long_forms(load):
    over = {"strategy.comm_hook": ["none", {"kind": "top_k", "ratio": 0.5}]}
    points = load(strategy={"kind": "ddp"}, sweep=over).points()
    assert [point.strategy.comm_hook for _, point in points] == [NoHook(), TopK(ratio=0.5)]


# What PowerSGD takes apart -----------------------------------------------------------------------


def test_a_tensor_is_a_matrix_of_as_many_rows_as_its_first_axis_has():
    kernel = tensor("conv", 64, 3, 7, 7)
    (factor,) = PowerSGD(rank=4).factors([kernel])
    assert factor == ("conv", 64, 147, 4)


def test_vectors_and_single_numbers_travel_as_they_are():
    assert PowerSGD().factors([tensor("bias", 1000), tensor("scale"), tensor("one", 1, 1)]) == []


@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    rank=st.integers(1, 12),
    rate=st.sampled_from([0.5, 1.0, 2.0, 3.5]),
)
def test_a_matrix_is_taken_apart_only_where_that_saves_enough(rows, columns, rank, rate):
    hook = PowerSGD(rank=rank, min_compression_rate=rate)
    found = hook.factors([tensor("w", rows, columns)])
    used = min(rows, columns, rank)
    assert bool(found) == ((rows + columns) * used * rate < rows * columns)
    assert all(factor.rank == used for factor in found)


def test_matrices_of_one_shape_stand_together():
    tensors = [tensor("a", 9, 9), tensor("b", 20, 10), tensor("c", 9, 9), tensor("d", 10, 20)]
    names = [factor.name for factor in PowerSGD().factors(tensors)]
    assert names == ["a", "c", "b", "d"]


# Batched PowerSGD --------------------------------------------------------------------------------


@for_each(
    ("num_elements", "side"), [(1, 1), (2, 2), (4, 2), (5, 3), (9, 3), (10, 4), (10**12, 10**6)]
)
def test_a_bucket_has_room_in_the_least_square(num_elements, side):
    assert side_of(num_elements) == side


def test_two_thin_matrices_of_a_bucket_travel():
    hook = BatchedPowerSGD(start_step=0, rank=2)
    bucket = Bucket(("a", "b"), 90, "float32", 360.0)
    sent = [
        op for op in hook.send(None, bucket, "bucket 0", 0.0, 4.0, count()) if hasattr(op, "tag")
    ]
    assert [(op.label, op.nbytes) for op in sent] == [
        ("bucket 0 P", 4 * 10 * 2),
        ("bucket 0 Q", 4 * 10 * 2),
    ]


# Against torch 2.14 on two gloo ranks ------------------------------------------------------------

POWER = {"kind": "power_sgd", "start_step": 2, "min_compression_rate": 1}
TORCHS = {
    "rank 1": (
        POWER,
        "float64",
        [1.9933818, 1.22268821, 0.93107157, 1.88075119, 1.15980909, 0.7029732, 1.29252475],
    ),
    "rank 1, float32": (
        POWER,
        "float32",
        [1.9933818, 1.22268832, 0.93107164, 1.91193372, 1.11044133, 0.72124329, 1.28933579],
    ),
    "a new Q in each step": (
        {**POWER, "rank": 3, "warm_start": False},
        "float64",
        [1.9933818, 1.22268821, 0.93107157, 1.99109121, 1.06502913, 0.71535227, 1.33333046],
    ),
    "another seed, batched": (
        {**POWER, "rank": 2, "random_seed": 7, "batch_tensors_with_same_shape": True},
        "float64",
        [1.9933818, 1.22268821, 0.93107157, 1.98988872, 1.06396446, 0.75906058, 1.35133777],
    ),
    "no communication": (
        {"kind": "noop"},
        "float32",
        [1.9933818, 1.27972427, 0.65367761, 1.3850432, 1.15603828, 0.71147209, 1.31167358],
    ),
    "in float16": (
        {"kind": "fp16_wrapper", "hook": POWER},
        "float32",
        [1.9933818, 1.22276083, 0.93098387, 1.93165249, 1.10344714, 0.73468655, 1.31429178],
    ),
    "in bfloat16": (
        {"kind": "bf16_wrapper", "hook": POWER},
        "float32",
        [1.9933818, 1.22271672, 0.93198079, 1.93150103, 1.10263494, 0.73575711, 1.31356621],
    ),
}
ROUNDED = {"in float16": 5e-4, "in bfloat16": 3e-3}
"""Products of 16-bit numbers are summed in another order."""


@for_each("case", TORCHS)
def test_hooks_train_as_torchs(case):
    hook, dtype, losses = TORCHS[case]
    strategy = {"kind": "ddp", "comm_hook": hook}
    found = trained(strategy, 2, layers=WIDER, steps=8, dtype=dtype).metrics["loss"]
    assert found[:7] == pytest.approx(losses, rel=ROUNDED.get(case, 1e-6))


def test_a_wrapper_around_nothing_is_the_hook_of_its_dtype():
    found = [
        trained({"kind": "ddp", "comm_hook": hook}, 2, steps=3)
        for hook in ("bf16", {"kind": "bf16_wrapper", "hook": "none"})
    ]
    assert found[0].metrics["loss"] == found[1].metrics["loss"]
    sent = [each.metrics["bytes_sent_per_rank"] for each in found]
    assert sent[0] == sent[1]


def test_a_hook_that_sends_bytes_is_not_wrapped():
    with pytest.raises(
        ValidationError, match=r"top_k sends the same bytes in any dtype; wrap one of"
    ):
        DDP(comm_hook={"kind": "fp16_wrapper", "hook": "top_k"})
