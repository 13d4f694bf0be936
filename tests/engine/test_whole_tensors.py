"""Optimizers that look at whole tensors, and clipping by value, under every way of sharing."""

from pathlib import Path

import numpy as np
import pytest
from for_each import for_each, for_some
from recorded_mlp import trained
from small_scenario import FAST

import simdp
from simdp.errors import ScenarioError
from simdp.scenario import checked

pytestmark = pytest.mark.slow

STRATEGIES = [
    "single",
    "zero1",
    {"kind": "zero1", "communication": "reduce_scatter"},
    "zero2",
    "fsdp",
    {"kind": "hsdp", "shard_size": 2},
]
GROUPS = [{"params": ["*.bias"], "weight_decay": 0.0}]
TRUSTING = [
    {"kind": "lamb", "lr": 0.05, "eps": 1e-3, "param_groups": GROUPS},
    {"kind": "lamb", "lr": 0.05, "eps": 1e-3, "always_adapt": True, "maximize": True},
    {"kind": "lars", "lr": 5.0, "weight_decay": 0.1, "param_groups": GROUPS},
    {"kind": "lars", "lr": 5.0, "weight_decay": 0.1, "nesterov": True},
]


def scenario(strategy, optimizer, world_size=4, device=FAST["device"], **more):
    single = strategy == "single"
    workload = {
        "model": {"kind": "mlp", "widths": [5, 7, 3], "activation": "tanh"},
        "dataset": {"kind": "regression", "num_samples": 48},
        "optimizer": optimizer,
        "global_batch": 16,
        "dtype": "float64",
        **more,
    }
    cluster = {"world_size": 1 if single else world_size, **FAST, "device": device}
    raw = {"cluster": cluster, "workload": workload, "strategy": strategy}
    return checked(raw, Path())


def weights(*args, **more):
    found = simdp.simulate(scenario(*args, **more)).replicas
    for other in found[1:]:
        for name in other:
            np.testing.assert_array_equal(other[name], found[0][name])
    return found[0]


def assert_alike(found, wanted):
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-10, atol=1e-12)


@for_some("strategy", STRATEGIES, 3)
@for_each("optimizer", TRUSTING)
def test_pieces_of_a_tensor_trust_the_norm_of_the_whole(strategy, optimizer):
    assert_alike(weights(strategy, optimizer), weights("ddp", optimizer))


MUON = {"kind": "muon", "rest": ["*.bias"]}


@for_each("strategy", ["single", "zero1"])
@for_each("optimizer", ["adafactor", MUON])
def test_owners_of_whole_tensors_may_look_at_them(strategy, optimizer):
    assert_alike(weights(strategy, optimizer), weights("ddp", optimizer))


def test_matrix_products_of_an_update_take_time():
    """Twice as many iterations take so many FLOPs more, of the dtype that the device knows."""
    told = {**FAST["device"], "launch": "0 s"}  # iterations have kernels of their own as well
    seconds = [
        simdp.simulate(scenario("ddp", optimizer, device=told)).metrics["update_s"]
        for optimizer in (MUON, {**MUON, "ns_steps": 10})
    ]
    device = scenario("ddp", MUON, device=told).cluster.devices()[0]
    flops = 5 * (4 * 25 * 7 + 2 * 125 + 4 * 9 * 7 + 2 * 27)
    wanted = flops / device.rate("bfloat16" if "bfloat16" in device.peak else "float64")
    assert seconds[1] - seconds[0] == pytest.approx(wanted, rel=1e-6)


@for_each("strategy", STRATEGIES[2:])
def test_adafactor_has_no_pieces(strategy):
    kind = strategy if isinstance(strategy, str) else strategy["kind"]
    with pytest.raises(ScenarioError) as caught:
        scenario(strategy, "adafactor")
    assert [line.rpartition("workload.")[2] for line in caught.value.problems] == [
        f"optimizer: adafactor updates whole tensors, of which {kind} leaves each rank a piece; "
        "use ddp, or zero1, whose ranks own whole tensors."
    ]


@for_some("strategy", STRATEGIES, 3, first=1)
def test_clipping_by_value_needs_no_one_else(strategy):
    optimizer = {"kind": "sgd", "lr": 0.1}
    found = weights(strategy, optimizer, clip_grad_value=0.01)
    assert_alike(found, weights("ddp", optimizer, clip_grad_value=0.01))
    start = weights(strategy, {"kind": "sgd", "lr": 0.0})
    moved = max(abs(found[name] - start[name]).max() for name in start)
    assert moved == pytest.approx(3 * 0.1 * 0.01, rel=1e-6)  # three steps, all to one side


@for_each(("strategy", "calls"), [("ddp", 0), ("zero1", 0), ("fsdp", 3)])
def test_ranks_with_pieces_agree_on_two_norms_of_each_tensor(strategy, calls):
    chosen = scenario(strategy, "lamb", steps=3)
    spans = [s for s in simdp.simulate(chosen).trace.spans if s.name.endswith("trust ratios")]
    sent = [span.nbytes for span in spans if span.rank == 0 and span.activity == "comm"]
    assert sent == calls * [2 * 3 / 4 * 2 * 4 * 4]  # a ring's, of eight float32 on each rank


@for_each("strategy", [{"kind": "fsdp"}, {"kind": "hsdp", "shard_size": 2}])
def test_rprop_is_refused_under_fully_shard_as_in_torch(strategy):
    with pytest.raises(ScenarioError) as caught:
        trained(strategy, 2, optimizer="rprop")
    assert caught.value.problems == [
        f"workload.optimizer: rprop does not work under {strategy['kind']}: torch refuses to index "
        "the sharded gradients of fully_shard; use ddp or fsdp1, or another optimizer."
    ]
    assert trained("fsdp1", 2, optimizer="rprop", steps=1).metrics["loss"]
