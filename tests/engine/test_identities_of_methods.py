"""Every synchronous method learns what DDP does, and no timing changes a bit of it.

Over all kinds of strategies, models of every sort and numbers of ranks. Losses inside forward,
unequal pieces, 16 bits, and each method's own timing and bytes are in the tests of the methods.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each, for_some
from hypothesis import given, settings
from hypothesis import strategies as st
from small_scenario import FAST
from test_identities import BATCH_NORM, CONVOLUTIONS, EINSUM, LLAMA, MLP, TRANSFORMER, stragglers

import simdp
from simdp.scenario import checked
from simdp.strategies import STRATEGIES
from simdp.strategies.comm_hooks import COMM_HOOKS

GOLDEN = Path(__file__).parents[1] / "golden"
OWN_HOOKS = Path(__file__).parents[1] / "own_hooks.py"

DDP = {"kind": "ddp"}
AVERAGED_WEIGHTS = (
    {"kind": "local_sgd", "local_steps": 1},
    {"kind": "diloco", "local_steps": 1, "outer_optimizer": {"kind": "sgd", "lr": 1.0}},
)
DEEPSPEED = {"communication": "deepspeed", "reduce_bucket_size": 40}
SMALL = {"reduce_bucket_size": 40, "param_persistence_threshold": 5, "prefetch_bucket_size": 30}
EXACT = [
    {"kind": "apex", "message_size": 20},
    {"kind": "data_parallel"},
    {"kind": "data_parallel", "loss_in_forward": True},
    {"kind": "ddp", "bucket_cap": "100 B"},
    {"kind": "ddp", "version": "1.4", "overlap": False},
    {"kind": "ddp", "static_graph": True, "no_sync": False, "gradient_as_bucket_view": True},
    {"kind": "fsdp"},
    {"kind": "fsdp", "reshard_after_forward": False, "forward_prefetch": 3},
    {"kind": "fsdp", "reshard_after_forward": "some", "units": "torchtitan", "sync": "last"},
    {"kind": "fsdp", "reshard_after_forward": True, "backward_prefetch": 2, "offload": "cpu"},
    {"kind": "fsdp1"},
    {"kind": "fsdp1", "units": "whole", "backward_prefetch": "none"},
    {"kind": "fsdp1", "sharding_strategy": "SHARD_GRAD_OP"},
    {"kind": "fsdp1", "sharding_strategy": "HYBRID_SHARD"},
    {"kind": "horovod", "fusion_threshold": "300 B", "cycle_time": "20 us"},
    {"kind": "hsdp"},
    {"kind": "hsdp", "reshard_after_forward": "some"},
    *AVERAGED_WEIGHTS,
    {"kind": "parameter_server"},
    {"kind": "zero1"},
    {"kind": "zero1", "parameters_as_bucket_view": True},
    {"kind": "zero1", "communication": "reduce_scatter", "bucket_cap": "100 B"},
    {"kind": "zero2"},
    {"kind": "zero2", "bucket_cap": "100 B", "overlap": False},
    {"kind": "zero1", **DEEPSPEED, "offload_optimizer": "cpu"},
    {"kind": "zero2", **DEEPSPEED, "overlap_comm": True},
    {"kind": "zero3"},
    {"kind": "zero3", **SMALL, "max_reuse_distance": 0, "offload_param": "cpu"}
    | {"offload_optimizer": "cpu"},
]
"""Synchronous methods that average whole gradients (or, after each step of SGD, weights)."""

HOOKS = {
    **{kind: {"kind": kind} for kind in COMM_HOOKS if kind != "none"},
    "power_sgd": {"kind": "power_sgd", "rank": 2, "start_step": 1, "min_compression_rate": 1},
    "batched_power_sgd": {"kind": "batched_power_sgd", "rank": 2, "start_step": 1},
    "top_k": {"kind": "top_k", "ratio": 0.2},
    "python": {"kind": "python", "path": str(OWN_HOOKS), "name": "first_half"},
}
SYNCHRONOUS = [
    *EXACT,
    *({**DDP, "comm_hook": hook} for hook in HOOKS.values()),
    {"kind": "local_sgd", "local_steps": 2},
    {"kind": "diloco", "local_steps": 2},
    {"kind": "horovod", "merge": "mg_wfbp"},
]

SGD = {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
# A larger eps keeps these from dividing an attention's rounding errors by themselves.
ADAM = {"kind": "adam", "lr": 0.01, "eps": 1e-3}
ADAGRAD = {"kind": "adagrad", "lr": 0.1, "eps": 1e-3}

models = st.sampled_from([MLP, EINSUM, CONVOLUTIONS, BATCH_NORM, TRANSFORMER, LLAMA])
world_sizes = st.sampled_from([3, 2, 4, 6, 5, 1])  # the first example has the first
seeds = st.integers(0, 2**16)
few = settings(max_examples=2)


@st.composite
def networks(draw):
    """Links of any speed between nodes of any size, or within one."""
    link = st.fixed_dictionaries(
        {
            "alpha": st.sampled_from(["0 s", "5 us", "2 ms"]),
            "bandwidth": st.sampled_from(["100 kB/s", "1 GB/s", "300 GB/s"]),
        }
    )
    topology = st.sampled_from(["ring", "switch", "full_mesh"])
    return {"topology": draw(topology), "link": draw(link)}


def written(strategy):
    return ", ".join(
        str(value["kind"] if isinstance(value, dict) else value) for value in strategy.values()
    )


def divisors(number):
    return [size for size in range(1, number + 1) if number % size == 0]


def of(strategy, world_size, data):
    """The strategy with what depends on the number of ranks."""
    size = world_size
    if strategy["kind"] == "hsdp" or "HYBRID" in strategy.get("sharding_strategy", ""):
        size = data.draw(st.sampled_from(divisors(world_size)))
        strategy = {**strategy, "shard_size": size}
    if strategy.get("reshard_after_forward") == "some":
        strategy = {**strategy, "reshard_after_forward": data.draw(st.sampled_from(divisors(size)))}
    if strategy["kind"] == "parameter_server":
        return {**strategy, "server": data.draw(st.integers(0, world_size - 1))}
    return strategy


def play(strategy, world_size, workload, cluster=None, seed=0, base=Path()):
    dataset = workload.get("dataset", "regression")
    if isinstance(dataset, str):
        dataset = {"kind": dataset, "num_samples": 120}
    raw = {
        "seed": seed,
        "cluster": {**FAST, "world_size": world_size, **(cluster or {})},
        "workload": {
            "dtype": "float64",
            "steps": 2,
            "shuffle": True,
            "optimizer": SGD,
            **workload,
            "dataset": dataset,
        },
        "strategy": strategy,
    }
    return simdp.simulate(checked(raw, base))


def learned(replica):
    """Running statistics are left out: which rank's are kept differs from method to method."""
    left_out = ("running_mean", "running_var", "num_batches_tracked")
    return {name: array for name, array in replica.items() if not name.endswith(left_out)}


def test_every_strategy_that_trains_several_ranks_is_here():
    kinds = {strategy["kind"] for strategy in EXACT}
    assert sorted(kinds) == sorted(set(STRATEGIES) - {"single"})
    assert sorted(HOOKS) == sorted(set(COMM_HOOKS) - {"none"})


@pytest.mark.slow
@for_some("strategy", EXACT, 4, ids=written)
@few
@given(models, world_sizes, st.integers(1, 3), st.integers(1, 2), seeds, st.data())
def test_it_learns_what_ddp_does(strategy, model, world_size, each, accumulate, seed, data):
    linear = strategy in AVERAGED_WEIGHTS  # the average of SGD's steps is the step of the average
    optimizer = SGD if linear else data.draw(st.sampled_from([SGD, ADAM, ADAGRAD]))
    batch = world_size * each * accumulate * (2 if model is BATCH_NORM else 1)
    workload = {**model, "optimizer": optimizer, "global_batch": batch, "grad_accum": accumulate}
    workload["drop_last"] = True  # a smaller batch at an epoch's end has unequal pieces
    cluster = {**data.draw(networks()), "stragglers": data.draw(stragglers(world_size))}
    found = play(of(strategy, world_size, data), world_size, workload, cluster, seed)
    wanted = play(DDP, world_size, workload, seed=seed)
    assert found.metrics["replicas_identical"] in (True, None)  # None: there is one model
    # A bias before batch norm has no gradient but rounding, which AdaGrad divides by its own size.
    within = 1e-10 if optimizer is ADAGRAD else 1e-12
    for own in found.replicas:
        assert own.keys() == wanted.replicas[0].keys()
        for name, array in learned(wanted.replicas[0]).items():
            np.testing.assert_allclose(own[name], array, rtol=0, atol=within, err_msg=name)
    np.testing.assert_allclose(found.metrics["loss"], wanted.metrics["loss"], rtol=1e-11)


@pytest.mark.long
@pytest.mark.slow
@for_each("strategy", SYNCHRONOUS, ids=written)
@few
@given(models, world_sizes, seeds, st.data())
def test_neither_stragglers_nor_links_change_a_bit(strategy, model, world_size, seed, data):
    strategy = of(strategy, world_size, data)
    workload = {**model, "global_batch": 3 * world_size, "steps": 3, "dtype": "float32"}
    cluster = {**data.draw(networks()), "stragglers": data.draw(stragglers(world_size))}
    plain, other = (play(strategy, world_size, workload, c, seed) for c in ({}, cluster))
    for own, same in zip(plain.replicas, other.replicas, strict=True):
        assert all(own[name].tobytes() == same[name].tobytes() for name in own)
    assert other.metrics["loss_per_rank"] == plain.metrics["loss_per_rank"]
    assert other.metrics["grad_norm"] == plain.metrics["grad_norm"]


def test_one_device_has_the_weights_that_torchs_sharded_ranks_end_at(tmp_path):
    golden = np.load(GOLDEN / "g10_zero.npz")
    notes = json.loads((GOLDEN / "g10_zero.json").read_text())["equivalence"]
    names = [f"layers.{layer}.{kind}" for layer in range(3) for kind in ("weight", "bias")]
    first = {name: golden[f"init{number}"] for number, name in enumerate(names)}
    np.savez(tmp_path / "weights.npz", **first)
    np.savez(tmp_path / "data.npz", x=golden["X"], y=golden["T"])
    workload = {
        "model": {"kind": "mlp", "widths": [5, 8, 6, 2]},
        "weights": "weights.npz",
        "dataset": {"kind": "npz", "path": "data.npz"},
        "optimizer": {"kind": "adam", "lr": 0.01},
        "shuffle": False,
        "microbatch": 64,
    }
    for steps, wanted in enumerate(golden["adam_single_w"], start=1):
        (own,) = play("single", 1, {**workload, "steps": steps}, base=tmp_path).replicas
        flat = np.concatenate([own[name].reshape(-1) for name in names])
        np.testing.assert_allclose(flat, wanted, rtol=0, atol=1e-14)
        for world_size in (2, 4):
            sharded = golden[f"zero_w{world_size}_w"][steps - 1]
            furthest = notes[f"w{world_size}"]["max_abs_dw_vs_adam_single"]
            assert np.abs(sharded - wanted).max() <= furthest
