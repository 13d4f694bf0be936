"""DDP's own mixed precision."""

from itertools import pairwise

import numpy as np
import pytest
from every_strategy import WIDTHS, scenario
from for_each import for_each
from ml_dtypes import bfloat16
from pydantic import ValidationError

import simdp
from simdp.errors import ScenarioError
from simdp.results.memory import MEMORY_PARTS
from simdp.steps.ops import AllReduce, Broadcast, Copy, Hold, Update
from simdp.steps.program import flat
from simdp.strategies.ddp import DDP

LOW = {"param_dtype": "bfloat16"}
NUM_ELEMENTS = sum((a + 1) * b for a, b in pairwise(WIDTHS))
BATCH_NORM = {
    "kind": "sequential",
    "layers": [
        {"name": "fc", "kind": "linear", "in_features": 4, "out_features": 3},
        {"name": "bn", "kind": "batch_norm1d", "num_features": 3},
    ],
}


def ddp(mixed=None, **options):
    return {"kind": "ddp", **({"mixed_precision": mixed} if mixed else {}), **options}


def learned(strategy, **workload):
    return simdp.simulate(scenario(strategy, numerics=True, **workload)).replicas


def plan(strategy, **workload):
    chosen = scenario(strategy, **workload)
    batches = next(chosen.workload.batches(4, 0, chosen.base))
    return list(flat(chosen.program.plan(2, batches)))


def held(ops, part):
    return [op.nbytes for op in ops if isinstance(op, Hold) and op.part == part]


# Numbers ----------------------------------------------------------------------------------------


@for_each("accumulate", [1, 2])
def test_it_learns_what_sixteen_bit_weights_with_masters_do(accumulate):
    # Four ranks: a division by 4 rounds nothing, before the sum or after it.
    workload = {"grad_accum": accumulate, "precision": {"kind": "mixed", "dtype": "bfloat16"}}
    found = learned(ddp(LOW), grad_accum=accumulate)
    wanted = learned(ddp(), **workload)
    for name, array in wanted[0].items():
        assert (found[0][name].astype(bfloat16) == array).all()


def test_sums_in_32_bits_are_those_of_fsdp():
    asked = {**LOW, "reduce_dtype": "float32"}
    found, wanted = learned(ddp(asked)), learned({"kind": "fsdp", **asked})
    for own in found:
        for name, array in wanted[0].items():
            np.testing.assert_allclose(own[name], array, rtol=1e-6, atol=0)
    assert any((learned(ddp(LOW))[0][name] != found[0][name]).any() for name in found[0])


def test_sums_in_16_bits_are_rounded_then_divided():
    found = learned(ddp({"reduce_dtype": "bfloat16"}))
    wanted = learned(ddp(comm_hook="bf16"))
    for name, array in wanted[0].items():
        assert (found[0][name] == array).all()


def test_buffers_are_rounded_when_they_change():
    workload = {"model": BATCH_NORM, "steps": 1}
    found = learned(ddp({"buffer_dtype": "bfloat16"}), **workload)
    for own, plain in zip(found, learned(ddp(), **workload), strict=True):
        for name in ("bn.running_mean", "bn.running_var"):
            assert (own[name] == plain[name].astype(bfloat16)).all()
            assert (own[name] != plain[name]).any()
        assert own["bn.num_batches_tracked"] == 1
        assert (own["fc.weight"] == plain["fc.weight"]).all()
    sent = [
        next(op.nbytes for op in plan(one, model=BATCH_NORM) if isinstance(op, Broadcast))
        for one in (ddp({"buffer_dtype": "bfloat16"}), ddp())
    ]
    assert sent == [2 * 6, 4 * 6]


# What it does -----------------------------------------------------------------------------------


def test_weights_are_cast_before_forward_and_averages_behind_their_sums():
    ops = plan(ddp(LOW))
    copies = [(op.name, op.nbytes) for op in ops if isinstance(op, Copy)]
    both = NUM_ELEMENTS * (4 + 2) / 2
    assert copies == [("parameters to 16 bit", both), ("bucket 0 to float32", both)]
    assert held(ops, "parameters") == [2 * NUM_ELEMENTS, -2 * NUM_ELEMENTS]
    assert held(ops, "gradients") == [2 * NUM_ELEMENTS, -2 * NUM_ELEMENTS]
    (reduced,) = [op for op in ops if isinstance(op, AllReduce)]
    assert reduced.nbytes == 2 * NUM_ELEMENTS
    assert reduced.bucket.dtype == "bfloat16"


@for_each("kind", ["ddp", "fsdp1"])
def test_replicas_are_made_alike_before_anything_is_cast(kind):
    low = LOW if kind == "fsdp1" else {"mixed_precision": LOW}
    setup = scenario({"kind": kind, **low}).program.setup
    sent = [op.nbytes for op in setup if isinstance(op, Broadcast)]
    assert sent == [4 * NUM_ELEMENTS]


def test_another_dtype_for_sums_takes_a_buffer_beside_the_bucket():
    ops = plan(ddp({**LOW, "reduce_dtype": "float32"}))
    assert held(ops, "temporary") == [4 * NUM_ELEMENTS, -4 * NUM_ELEMENTS]
    assert [op.nbytes for op in ops if isinstance(op, AllReduce)] == [4 * NUM_ELEMENTS]
    names = [op.name for op in ops if isinstance(op, Copy)]
    assert names == ["parameters to 16 bit", "bucket 0 to float32", "bucket 0 to float32"]


@for_each(("no_sync", "times"), [(True, 1), (False, 2)])
def test_copies_stay_until_gradients_are_averaged(no_sync, times):
    ops = plan(ddp(LOW, no_sync=no_sync), grad_accum=2)
    assert held(ops, "parameters") == [2 * NUM_ELEMENTS, -2 * NUM_ELEMENTS] * times
    assert held(ops, "gradients") == [2 * NUM_ELEMENTS, -2 * NUM_ELEMENTS]
    assert len([op for op in ops if isinstance(op, Copy) and "16 bit" in op.name]) == 2
    assert isinstance(ops[-2], Update)


def test_buckets_are_cut_by_the_weights_own_bytes():
    found = [op for op in plan(ddp(LOW, bucket_cap="100 B")) if isinstance(op, AllReduce)]
    plain = [op for op in plan(ddp(bucket_cap="100 B")) if isinstance(op, AllReduce)]
    assert [op.bucket.names for op in found] == [op.bucket.names for op in plain]
    assert [2 * op.nbytes for op in found] == [op.nbytes for op in plain]


def test_a_rank_keeps_32_bits_and_16_for_a_while():
    wide = {"model": {"kind": "mlp", "widths": [64] * 6}, "optimizer": {"kind": "adam", "lr": 0.01}}
    elements = 5 * 65 * 64
    found = simdp.simulate(scenario(ddp(LOW), **wide))
    memory = found.metrics["memory_bytes"]
    assert (memory["parameters"], memory["buckets"]) == (4 * elements, 2 * elements)
    assert (memory["gradients"], memory["optimizer_state"]) == (4 * elements, 8 * elements)
    taken = [
        float(np.asarray(h.nbytes).flat[0])
        for h in found.trace.memory
        if 0 in h.ranks and h.part == MEMORY_PARTS.index("parameters")
    ]
    assert (sum(taken), max(np.cumsum(taken))) == (4 * elements, 6 * elements)


# What is refused --------------------------------------------------------------------------------


def test_it_says_what_does_not_go_with_it():
    with pytest.raises(ValidationError, match="by its own hook, which excludes comm_hook"):
        DDP.model_validate({"mixed_precision": LOW, "comm_hook": "bf16"})
    delay = {"delay_all_reduce_named_params": ["a"], "param_to_hook_all_reduce": "b"}
    with pytest.raises(ValidationError, match="which excludes delay_all_reduce_named_params"):
        DDP.model_validate({"mixed_precision": LOW, **delay})
    with pytest.raises(ScenarioError, match=r"mixed_precision\.param_dtype: bfloat16 needs"):
        scenario(ddp(LOW), dtype="float64")
    with pytest.raises(ScenarioError, match="leave one of them out"):
        scenario(ddp(LOW), precision={"kind": "amp", "dtype": "bfloat16"})
