"""Kernels of compiled chains, and steps that are replayed as a CUDA graph."""

from pathlib import Path

import numpy as np
import pytest

import simdp
from simdp.cluster.hardware import Device
from simdp.engine.compute.call_times import CallTimes, call_kernels
from simdp.engine.compute.roofline import Roofline
from simdp.scenario import checked
from simdp.workload import Workload
from simdp.workload.layers.base import Kernel

D = 8
BLOCK = [
    {"name": "ln", "kind": "layer_norm", "normalized_shape": D},
    {"name": "wide", "kind": "linear", "in_features": D, "out_features": D, "bias": False},
    "relu",
    {"name": "drop", "kind": "dropout", "p": 0.1},
    {"name": "narrow", "kind": "linear", "in_features": D, "out_features": D, "bias": False},
]
FLOAT = 4


def workload(**options):
    layers = [
        layer if isinstance(layer, dict) else {"kind": layer, "name": layer} for layer in BLOCK
    ]
    named = [{**layer, "name": f"blocks.0.{layer['name']}"} for layer in layers]
    model = {"kind": "sequential", "input_shape": [D], "layers": named}
    data = {"kind": "regression", "num_samples": 8}
    raw = {"model": model, "dataset": data, "microbatch": 2, "compile": True, **options}
    return Workload.model_validate(raw).settled(Path())


def kernels(activity, **options):
    return call_kernels(workload(**options), activity, ((D,),))


def test_a_chain_is_one_kernel_that_moves_what_enters_and_what_leaves():
    plain, fused = kernels("forward", compile=False), kernels("forward")
    assert [len(calls) for calls in fused] == [1, 1, 0, 1, 1, 1]
    assert fused[3] == [Kernel(plain[2][0].flops + plain[3][0].flops, 2 * D * FLOAT)]
    assert [fused[i] for i in (1, 4, 5)] == [plain[i] for i in (1, 4, 5)]  # products, the loss
    norm = fused[0][0]
    assert (norm.nbytes, norm.fixed) == (2 * D * FLOAT, 2 * D * FLOAT)


def test_backward_reads_what_slopes_need_from_where_the_chain_began():
    fused = kernels("backward")
    (activation,) = fused[3]
    # A slope comes, a slope goes, and relu is computed again from what the product made.
    assert activation.nbytes == 3 * D * FLOAT
    norm, weights = fused[0]
    assert norm.nbytes == 2 * D * FLOAT  # nobody wants the model's input's gradient
    assert weights == Kernel(2 * D, 2 * D * FLOAT, 2 * D * FLOAT)


def test_half_precision_halves_what_a_chain_moves():
    full, half = kernels("forward"), kernels("forward", precision="mixed")
    assert half[3][0].nbytes == full[3][0].nbytes / 2


def test_a_compiled_model_takes_less_time_and_learns_the_same():
    model = {"kind": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 50}
    data = {"kind": "tokens", "num_samples": 16, "sequence_length": 8}
    work = {"model": model, "dataset": data, "microbatch": 4, "loss": "cross_entropy", "steps": 2}
    cluster = {"world_size": 2, "device": "a100-sxm4-80gb", "link": "nvlink3"}
    found = [
        simdp.simulate(checked({"cluster": cluster, "workload": work | more}, Path())).metrics
        for more in ({}, {"compile": True}, {"cuda_graphs": True})
    ]
    plain, compiled, graphs = found
    assert graphs["step_time_s"] < compiled["step_time_s"] < plain["step_time_s"]
    assert plain["loss"] == compiled["loss"] == graphs["loss"]


def test_a_graph_is_launched_once_for_all_kernels_of_a_micro_step():
    device = Device(
        peak={"float32": "10 TFLOP/s"}, memory="10 GB", memory_bandwidth="1 TB/s", launch="3 us"
    )
    roofline = Roofline([device])
    plain, graphs = (CallTimes(workload(cuda_graphs=how), roofline) for how in (False, True))
    for activity, more in (("forward", 4), ("backward", None)):
        batch, zero = np.array([2]), np.array([0])
        found = [one.seconds(activity, batch, [((D,),)], zero).seconds for one in (plain, graphs)]
        count = sum(len(calls) for calls in kernels(activity))
        launches = count - (activity == "forward")
        assert (found[0] - found[1]).sum() == pytest.approx(launches * 3e-6), more
