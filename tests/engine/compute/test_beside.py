"""Kernels of eager torch between layers, by hand."""

import numpy as np
import pytest
from for_each import for_each

from simdp.cluster.hardware import Device
from simdp.engine.compute.call_times import Columns, call_kernels, with_accumulation
from simdp.engine.compute.roofline import Roofline
from simdp.workload import Workload
from simdp.workload.layers.base import Kernel

EAGER = {"kind": "roofline", "kernels": "torch"}
RESIDUAL = [
    {"name": "a", "kind": "linear", "in_features": 4, "out_features": 4},
    {"name": "b", "kind": "linear", "in_features": 4, "out_features": 4},
    {"name": "c", "kind": "add", "inputs": ["a", "b"]},
]
BATCH_NORM = [{"name": "bn", "kind": "batch_norm2d", "num_features": 3}, "flatten"]
LINEAR = {"name": "a", "kind": "linear", "in_features": 4, "out_features": 4, "bias": False}


def workload(layers, shape=(4,), loss="mse", **options):
    model = {"kind": "sequential", "layers": layers, "input_shape": shape}
    data = {"kind": "regression", "num_samples": 8}
    raw = {"model": model, "dataset": data, "microbatch": 1, "loss": loss, **options}
    return Workload.model_validate(raw)


def beside(activity, layers, shape=(4,), **options):
    """What comes to each call's kernels, and all of the loss."""
    options.setdefault("compute", EAGER)
    with_them = call_kernels(workload(layers, shape, **options), activity, (shape,))
    options["compute"] = "roofline"
    without = call_kernels(workload(layers, shape, **options), activity, (shape,))
    found = [more[len(own) :] for more, own in zip(with_them, without, strict=True)]
    return [*found[:-1], with_them[-1]]


def test_gradients_of_what_two_layers_take_are_added():
    a, b, c, _ = beside("backward", RESIDUAL)
    assert (a, b, c) == ([], [Kernel(0, 3 * 4 * 4)], [])  # at the first that took it
    assert not any(beside("forward", RESIDUAL)[:-1])


def test_a_batch_norm_counts_its_batches():
    assert beside("forward", BATCH_NORM, (3, 2, 2))[0] == [Kernel(0, 0, 16)]
    assert beside("backward", BATCH_NORM, (3, 2, 2))[0] == []


def test_autocast_casts_what_flows_and_each_parameter():
    amp = {"precision": {"kind": "amp", "dtype": "bfloat16"}}
    model = workload([LINEAR, {**LINEAR, "name": "b"}], compute=EAGER, **amp)
    first, second, _ = call_kernels(model, "forward", ((4,),))
    assert first[1:] == [Kernel(0, 0, 16 * 6), Kernel(0, 4 * 6)]  # the weight, and what goes in
    assert second[1:] == [Kernel(0, 0, 16 * 6)]  # which comes in 16 bits
    first, second, _ = call_kernels(model, "backward", ((4,),))
    assert first[1:] == [Kernel(0, 0, 16 * 6)]  # nobody wants the input's gradient
    assert second[2:] == [Kernel(0, 0, 16 * 6)]


def test_cross_entropy_is_a_log_softmax_and_the_choice_of_numbers():
    model = {"kind": "mlp", "widths": [4, 10], "activation": "relu"}
    raw = {"model": model, "dataset": {"kind": "blobs"}, "loss": "cross_entropy", "compute": EAGER}
    given = Workload.model_validate({**raw, "microbatch": 1})
    forward, backward = (call_kernels(given, each, ((4,),))[-1] for each in ("forward", "backward"))
    chosen = Kernel(1, 12)
    assert forward == [chosen, Kernel(50, 80)]
    # A gradient of 1, zeros, numbers put into them, and through the log_softmax.
    assert backward == [Kernel(0, 0, 4), Kernel(0, 40), chosen, Kernel(40, 120)]


@for_each(("activity", "count"), [("forward", 2), ("backward", 2)])
def test_plain_attention_scales_and_masks_its_scores(activity, count):
    model = {"kind": "gpt2", "vocab_size": 11, "n_positions": 4, "n_embd": 8, "n_layer": 1}
    model |= {"n_head": 2, "attn_pdrop": 0, "resid_pdrop": 0, "embd_pdrop": 0}
    raw = {"model": model, "dataset": "tokens", "loss": "cross_entropy", "microbatch": 1}
    plain, eager = (
        call_kernels(Workload.model_validate({**raw, "compute": kind}), activity, ((4,),))
        for kind in ("roofline", EAGER)
    )
    given = Workload.model_validate(raw).graph
    (number,) = (n for n, c in enumerate(given.calls) if c.layer.kind == "attention")
    added = eager[number][len(plain[number]) :]
    assert added == [Kernel(0, 2 * 2 * 4 * 4 * 4)] * count


def test_later_micro_steps_add_to_each_gradient_that_is_there():
    device = Device(
        peak={"float32": "1 TFLOP/s"}, memory="1 GB", memory_bandwidth="1 GB/s", launch="3 us"
    )
    found = Columns(np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), np.array([0, 1]))
    more = with_accumulation(found, workload(RESIDUAL), Roofline([device, device]))
    each = (3 * 4 * 16 + 3 * 4 * 4) / 1e9 + 2 * 3e-6
    np.testing.assert_allclose(more.seconds[:, 0], [1 + each, 1 + each, 1, 1], rtol=1e-12)
    np.testing.assert_array_equal(more.seconds[:, 1], 0)  # without samples


def test_compiled_models_have_no_kernels_of_eager_torch():
    told = "workload.compute|kernels: torch adds the kernels of eager torch; compile fuses these"
    with pytest.raises(ValueError, match=told):
        workload(RESIDUAL, compute=EAGER, compile=True)
