"""Every layer: gradients equal assert_gradient, arrays stay as they are, and costs make sense."""

from math import isfinite
from typing import NamedTuple

import numpy as np
import pytest
from for_each import for_each
from layer_checks import assert_gradient, buffers_of, kept_nbytes, new_pass, weights_of
from pydantic import TypeAdapter
from small_layers import Scale as Factor

from simdp.workload.execution import GraphExecutor, call_dtypes
from simdp.workload.layers import LAYERS, AnyModule
from simdp.workload.layers.attention import Attention, T5Attention
from simdp.workload.layers.base import GraphBuilder, Layer, Pass, ShapeError
from simdp.workload.layers.batchnorm import FrozenBatchNorm2d
from simdp.workload.layers.conv import Conv2d, FrozenConv2d
from simdp.workload.layers.embedding import ViTEmbeddings
from simdp.workload.layers.linear import Einsum, Gate
from simdp.workload.layers.pooling import RoIAlign
from simdp.workload.layers.rotary import RopeParameters, Rotary
from simdp.workload.layers.tensor_ops import Scale
from simdp.workload.precision import Full

BATCH = 5


class Tokens(NamedTuple):
    """An input of whole numbers below ``known``."""

    shape: tuple[int, ...]
    known: int


SERIES = (2, 5)
IMAGE = (2, 5, 4)
VOLUME = (2, 3, 4, 3)
SEQUENCE = (3, 4)

EXAMPLES = {
    "adaptive_avg_pool1d": [({"output_size": 3}, [SERIES])],
    "adaptive_avg_pool2d": [({"output_size": [2, 3]}, [IMAGE])],
    "adaptive_avg_pool3d": [({"output_size": [2, 3, 1]}, [VOLUME])],
    "add": [({}, [(3, 2), (3, 2)]), ({}, [(2,), (2,), (2,)])],
    "avg_pool1d": [({"kernel_size": 2}, [SERIES])],
    "avg_pool2d": [({"kernel_size": 2}, [IMAGE])],
    "avg_pool3d": [({"kernel_size": 2, "padding": 1}, [VOLUME])],
    "batch_norm1d": [
        ({"num_features": 4}, [(4,)]),
        ({"num_features": 4}, [(4, 3)]),
        ({"num_features": 4, "affine": False}, [(4,)]),
        ({"num_features": 4, "momentum": None}, [(4,)]),
        ({"num_features": 4, "track_running_stats": False}, [(4,)]),
    ],
    "batch_norm2d": [({"num_features": 2}, [IMAGE])],
    "batch_norm3d": [({"num_features": 2}, [VOLUME])],
    "celu": [({}, [(4,)])],
    "concat": [
        ({}, [(2, 3, 3), (1, 3, 3)]),
        ({"dim": -1}, [(2, 3, 3), (2, 3, 1), (2, 3, 2)]),
    ],
    "conv1d": [
        ({"in_channels": 2, "out_channels": 3, "kernel_size": 3, "padding": 1}, [SERIES]),
        ({"in_channels": 2, "out_channels": 2, "kernel_size": 2, "stride": 2}, [SERIES]),
    ],
    "conv2d": [
        ({"in_channels": 2, "out_channels": 3, "kernel_size": 3, "padding": 1}, [IMAGE]),
        ({"in_channels": 2, "out_channels": 4, "kernel_size": 2, "groups": 2}, [IMAGE]),
        ({"in_channels": 2, "out_channels": 1, "kernel_size": 2, "stride": 2}, [IMAGE]),
        ({"in_channels": 2, "out_channels": 1, "kernel_size": 1, "bias": False}, [IMAGE]),
    ],
    "conv3d": [
        ({"in_channels": 2, "out_channels": 2, "kernel_size": 2, "padding": 1}, [VOLUME]),
        ({"in_channels": 2, "out_channels": 2, "kernel_size": 2, "stride": [1, 2, 2]}, [VOLUME]),
    ],
    "conv_transpose1d": [
        ({"in_channels": 2, "out_channels": 3, "kernel_size": 3, "stride": 2}, [SERIES]),
    ],
    "conv_transpose2d": [
        ({"in_channels": 2, "out_channels": 3, "kernel_size": 2, "bias": False}, [IMAGE]),
        ({"in_channels": 2, "out_channels": 4, "kernel_size": 3, "groups": 2}, [IMAGE]),
        (
            {
                "in_channels": 2,
                "out_channels": 1,
                "kernel_size": 3,
                "stride": 2,
                "padding": 1,
                "output_padding": [1, 0],
            },
            [IMAGE],
        ),
    ],
    "conv_transpose3d": [
        ({"in_channels": 2, "out_channels": 1, "kernel_size": 2, "stride": 2}, [(2, 2, 2, 3)]),
    ],
    "dropout": [({"p": 0.3}, [SEQUENCE]), ({"p": 0}, [(4,)]), ({"p": 1}, [(4,)])],
    "elu": [({}, [(4,)])],
    "embedding": [
        ({"num_embeddings": 7, "embedding_dim": 4}, [Tokens((3,), 7)]),
        ({"num_embeddings": 7, "embedding_dim": 4, "padding_idx": 2}, [Tokens((3,), 7)]),
    ],
    "first_token": [({}, [SEQUENCE])],
    "flatten": [({}, [IMAGE]), ({"start_dim": 2}, [IMAGE])],
    "gelu": [({}, [(4,)])],
    "gelu_tanh": [({}, [(4,)])],
    "glu": [({}, [(4,)]), ({"dim": 1}, [(4, 3)])],
    "group_norm": [
        ({"num_groups": 2, "num_channels": 4}, [(4, 3)]),
        ({"num_groups": 1, "num_channels": 2, "affine": False}, [IMAGE]),
    ],
    "gru": [
        ({"input_size": 4, "hidden_size": 2}, [SEQUENCE]),
        ({"input_size": 4, "hidden_size": 2, "num_layers": 2, "bias": False}, [SEQUENCE]),
    ],
    "hardsigmoid": [({}, [(4,)])],
    "hardswish": [({}, [(4,)])],
    "hardtanh": [({}, [(4,)])],
    "instance_norm1d": [({"num_features": 2}, [SERIES])],
    "instance_norm2d": [
        ({"num_features": 2, "affine": True}, [IMAGE]),
        ({"num_features": 2, "track_running_stats": True}, [IMAGE]),
    ],
    "instance_norm3d": [({"num_features": 2}, [VOLUME])],
    "last_token": [({}, [SEQUENCE])],
    "layer_norm": [
        ({"normalized_shape": 4}, [SEQUENCE]),
        ({"normalized_shape": 4, "bias": False}, [(4,)]),
        ({"normalized_shape": 4, "elementwise_affine": False}, [(4,)]),
    ],
    "leaky_relu": [({}, [(4,)])],
    "linear": [
        ({"in_features": 4, "out_features": 3}, [(4,)]),
        ({"in_features": 4, "out_features": 3, "bias": False}, [(4,)]),
        ({"in_features": 4, "out_features": 3}, [SEQUENCE]),
    ],
    "log_sigmoid": [({}, [(4,)])],
    "log_softmax": [({}, [(4,)]), ({"dim": 1}, [SEQUENCE])],
    "lstm": [
        ({"input_size": 4, "hidden_size": 2}, [SEQUENCE]),
        (
            {
                "input_size": 4,
                "hidden_size": 3,
                "proj_size": 2,
                "num_layers": 2,
                "bidirectional": True,
            },
            [SEQUENCE],
        ),
        (
            {
                "input_size": 4,
                "hidden_size": 2,
                "num_layers": 2,
                "bidirectional": True,
                "dropout": 0.3,
            },
            [SEQUENCE],
        ),
    ],
    "max_pool1d": [({"kernel_size": 2}, [SERIES])],
    "max_pool2d": [
        ({"kernel_size": 2}, [IMAGE]),
        ({"kernel_size": 3, "stride": 1, "padding": 1}, [IMAGE]),
    ],
    "max_pool3d": [({"kernel_size": 2, "stride": 1}, [VOLUME])],
    "mean_pool": [({}, [SEQUENCE]), ({"pad_id": 0}, [SEQUENCE, Tokens((3,), 2)])],
    "mish": [({}, [(4,)])],
    "multihead_attention": [
        ({"embed_dim": 4, "num_heads": 2}, [SEQUENCE]),
        ({"embed_dim": 4, "num_heads": 2, "mask": "causal", "dropout": 0.2}, [SEQUENCE]),
        ({"embed_dim": 4, "num_heads": 1, "bias": False}, [SEQUENCE, (5, 4)]),
    ],
    "permute": [({"dims": [0, 2, 1]}, [SEQUENCE]), ({"dims": [0, 3, 1, 2]}, [IMAGE])],
    "position_embedding": [({"num_embeddings": 5, "embedding_dim": 4}, [SEQUENCE])],
    "positional_encoding": [({"d_model": 4}, [SEQUENCE])],
    "prelu": [({}, [(4,)]), ({"num_parameters": 2}, [IMAGE]), ({}, [()])],
    "quick_gelu": [({}, [(4,)])],
    "relu": [({}, [(4,)])],
    "relu2": [({}, [(4,)])],
    "relu6": [({}, [(4,)])],
    "residual": [
        (
            {
                "layers": [{"kind": "linear", "in_features": 4, "out_features": 3}],
                "shortcut": [{"kind": "linear", "in_features": 4, "out_features": 3}],
            },
            [(4,)],
        ),
        ({"layers": ["tanh"], "activation": "none"}, [SEQUENCE]),
    ],
    "rms_norm": [
        ({"normalized_shape": 4}, [SEQUENCE]),
        ({"normalized_shape": 4, "eps": 1e-6, "fused": False}, [SEQUENCE]),
        ({"normalized_shape": 4, "elementwise_affine": False}, [(4,)]),
        ({"normalized_shape": list(SEQUENCE[-2:])}, [SEQUENCE]),
    ],
    "rnn": [
        ({"input_size": 4, "hidden_size": 3, "bidirectional": True}, [SEQUENCE]),
        ({"input_size": 4, "hidden_size": 3, "nonlinearity": "relu"}, [SEQUENCE]),
    ],
    "selu": [({}, [(4,)])],
    "sigmoid": [({}, [(4,)])],
    "silu": [({}, [(4,)])],
    "softmax": [({}, [(4,)]), ({"dim": 1}, [SEQUENCE])],
    "softplus": [({}, [(4,)])],
    "sync_batch_norm": [({"num_features": 4}, [(4, 3)]), ({"num_features": 4}, [(4,)])],
    "tanh": [({}, [(4,)]), ({}, [(2, 4)])],
    "transformer_encoder_layer": [
        ({"d_model": 4, "nhead": 2, "dim_feedforward": 6, "activation": "gelu"}, [SEQUENCE]),
        ({"d_model": 4, "nhead": 1, "dim_feedforward": 5, "norm_first": True}, [SEQUENCE]),
    ],
    "upsample": [
        ({"scale_factor": 2}, [IMAGE]),
        ({"scale_factor": 2, "mode": "bilinear"}, [IMAGE]),
        ({"scale_factor": [1, 3], "mode": "bilinear", "align_corners": True}, [IMAGE]),
    ],
}
"""Of each kind: its arguments, and its inputs by the shape of a sample."""

INNER = {
    "attention of keys with padding": (
        Attention(name="l", num_heads=2, pad_id=0),
        [(3, 4), (2, 8), Tokens((2,), 3)],
    ),
    "attention, packed": (Attention(name="l", num_heads=2, causal=True), [(3, 12)]),
    "attention of shared keys, flash": (
        Attention(name="l", num_heads=4, num_kv_heads=2, causal=True, implementation="flash"),
        [(3, 8), (3, 4), (3, 4)],
    ),
    "attention of shared keys, packed": (
        Attention(name="l", num_heads=2, num_kv_heads=1, upcast=True),
        [(3, 8)],
    ),
    "attention with a window": (
        Attention(name="l", num_heads=1, causal=True, window=2, interleaved=True),
        [(4, 12)],
    ),
    "attention with ALiBi and padding": (
        Attention(
            name="l",
            num_heads=3,
            alibi=8.0,
            causal=True,
            pad_id=0,
            dropout=0.2,
            implementation="flash",
        ),
        [(3, 18), Tokens((3,), 3)],
    ),
    "attention with dropout": (Attention(name="l", num_heads=1, dropout=0.3), [(3, 12)]),
    "gate": (Gate(name="l"), [(3, 2), (3, 2)]),
    "gate of another kind": (Gate(name="l", activation="tanh"), [(3, 2), (3, 2)]),
    "rotary": (Rotary(name="l", head_dim=4, rope=RopeParameters()), [(3, 8)]),
    "rotary, in part and packed": (
        Rotary(
            name="l",
            head_dim=4,
            rope=RopeParameters(rope_theta=100.0, partial_rotary_factor=0.5),
            packed=True,
        ),
        [(3, 12)],
    ),
    "frozen_batch_norm2d": (FrozenBatchNorm2d(name="l", num_features=2), [(2, 3, 3)]),
    "frozen_conv2d": (
        FrozenConv2d(name="l", conv=Conv2d(name="l", in_channels=2, out_channels=3, kernel_size=2)),
        [(2, 3, 3)],
    ),
    "roi_align": (RoIAlign(name="l", num_rois=5, output_size=2), [(2, 6, 4), (2, 3, 2)]),
    "roi_align of flat regions": (
        RoIAlign(name="l", num_rois=3, output_size=2, flat=True),
        [(2, 6, 4), (2, 3, 2)],
    ),
    "scale": (Scale(name="l", factor=0.5), [(4,)]),
    "t5_attention": (
        T5Attention(name="l", num_heads=2, bias="l.b", causal=True, num_buckets=6),
        [(3, 4), (3, 4), (3, 4)],
    ),
    "t5_attention of keys with padding": (
        T5Attention(name="l", num_heads=2, bias="l.b", dropout=0.3, pad_id=0, num_buckets=4),
        [(3, 4), (2, 4), (2, 4), Tokens((2,), 3)],
    ),
    "vit_embeddings": (ViTEmbeddings(name="l", num_patches=6, hidden_size=4), [(4, 2, 3)]),
}
"""Layers that only models write."""

EINSUMS = [
    ("bd,df->bf", (4,)),
    ("bsd,dhf->bshf", (2, 4)),
    ("bhd,hdf->bhf", (2, 4)),
    ("bd,d->b", (4,)),
]


def made(kind, options):
    return TypeAdapter(AnyModule).validate_python({"kind": kind, "name": "l", **options})


def cases():
    sizes = {"s": 2, "d": 4, "h": 2, "f": 3}
    found = {
        f"{kind}-{number}": (made(kind, options), inputs)
        for kind, examples in EXAMPLES.items()
        for number, (options, inputs) in enumerate(examples)
    }
    for equation, shape in EINSUMS:
        found[f"einsum-{equation}"] = (
            Einsum(name="l", equation=equation, sizes=sizes),
            [shape],
        )
    return found | INNER


CASES = cases()
LAYER_CASES = {name: case for name, case in CASES.items() if isinstance(case[0], Layer)}
every_layer = for_each(("layer", "given"), LAYER_CASES.values(), ids=LAYER_CASES)
every_module = for_each(("module", "given"), CASES.values(), ids=CASES)


def shapes_of(given):
    return [one.shape if isinstance(one, Tokens) else one for one in given]


def needs_of(given):
    """Every input wants a gradient that can have one."""
    return [not isinstance(one, Tokens) for one in given]


def inputs_of(given, dtype="float64"):
    random = np.random.default_rng(1)
    return [
        random.integers(one.known, size=(BATCH, *one.shape))
        if isinstance(one, Tokens)
        else random.standard_normal((BATCH, *one)).astype(dtype)
        for one in given
    ]


def backward(layer, weights, inputs, dy, needs, dtype="float64", into=None):
    """Gradients of the inputs, and those of the parameters."""
    run = new_pass(layer, weights, BATCH, dtype, into=into or {})
    _, saved = layer.forward(run, *inputs)
    slopes = layer.backward(run, saved, dy, needs)
    return (*slopes, *[None] * (len(inputs) - len(slopes))), run.gradients


def output(layer, weights, inputs, dtype="float64"):
    return layer.forward(new_pass(layer, weights, BATCH, dtype), *inputs)[0]


def test_every_kind_of_layer_has_an_example_here():
    assert list(EXAMPLES) == sorted(LAYERS)


@pytest.mark.slow
@every_layer
def test_gradients_equal_differences(layer, given):
    weights, inputs, needs = weights_of(layer), inputs_of(given), needs_of(given)
    slopes = np.random.default_rng(2).standard_normal(output(layer, weights, inputs).shape)

    def total():
        return float((output(layer, weights, inputs) * slopes).sum())

    found, gradients = backward(layer, weights, inputs, slopes, needs)
    for dx, x, need in zip(found, inputs, needs, strict=True):
        if need:
            assert_gradient(dx, total, x)
        else:
            assert dx is None
    assert set(gradients) == set(weights)
    for name, gradient in gradients.items():
        assert_gradient(gradient, total, weights[name], held=padding(layer), name=name)


def padding(layer):
    """The row of an embedding that torch gives no gradient, if it has one."""
    return getattr(layer, "padding_idx", None)


@pytest.mark.slow
@every_module
def test_gradients_in_a_graph_equal_differences(module, given):
    """Also of blocks, which are several layers; a number before each input stands for below."""
    builder = GraphBuilder(*map(str, range(len(given))))
    values = [
        builder.input(str(i))
        if isinstance(one, Tokens)
        else builder.call(Factor(name=f"x{i}", tensor=f"x{i}"), builder.input(str(i)))
        for i, one in enumerate(given)
    ]
    graph = builder.build(module.add_to(builder, *values))
    weights, inputs = weights_of(graph), inputs_of(given)
    executor = GraphExecutor(graph, call_dtypes(graph, Full(), "float64"), "float64")
    slopes = []

    def forward():
        run = new_pass_of_graph(graph, weights)
        (y,), kept = play(executor.forward(run, inputs))
        return run, y, kept

    def total():
        return float((forward()[1] * slopes[0]).sum())

    run, y, kept = forward()
    assert y.shape == (BATCH, *graph.shapes(shapes_of(given))[graph.outputs[0][0]])
    slopes.append(np.random.default_rng(2).standard_normal(y.shape))
    play(executor.backward(run, kept, slopes))
    assert sorted(run.gradients) == sorted(graph.ready_order) == sorted(weights)
    for name, gradient in run.gradients.items():
        held = padding(module)
        assert_gradient(gradient, total, weights[name], 1e-5, 1e-6, held=held, name=name)


def new_pass_of_graph(graph, weights):
    buffers = {}
    for layer in graph.registered:
        buffers |= buffers_of(layer)
    return Pass(weights, buffers=buffers, samples=np.arange(BATCH))


def play(script):
    """Run the generator of a rank that hears itself alone, and return its value."""
    answer = None
    try:
        while True:
            own = script.send(answer)
            answer = own[None] if len(own) % 2 else own  # forward gathers, backward adds
    except StopIteration as stop:
        return stop.value


@every_layer
def test_the_gradients_of_inputs_are_left_out_where_nobody_needs_them(layer, given):
    weights, inputs = weights_of(layer), inputs_of(given)
    dy = np.ones_like(output(layer, weights, inputs))
    found, gradients = backward(layer, weights, inputs, dy, [False] * len(inputs))
    _, wanted = backward(layer, weights, inputs, dy, needs_of(given))
    assert layer.kind == "sync_batch_norm" or found == (None,) * len(inputs)
    assert set(gradients) == set(wanted)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, wanted[name], rtol=1e-13, atol=1e-14)


@every_layer
def test_gradients_may_be_written_into_arrays_that_are_there(layer, given):
    weights, inputs, needs = weights_of(layer), inputs_of(given), needs_of(given)
    dy = np.ones_like(output(layer, weights, inputs))
    _, wanted = backward(layer, weights, inputs, dy, needs)
    into = {name: np.full_like(array, np.nan) for name, array in weights.items()}
    _, gradients = backward(layer, weights, inputs, dy, needs, into=into)
    assert set(gradients) == set(wanted)
    for name, gradient in gradients.items():
        np.testing.assert_array_equal(gradient, wanted[name])
        assert not any(np.shares_memory(gradient, array) for array in (*inputs, dy))
        assert not np.shares_memory(gradient, weights[name])


@every_layer
def test_a_layer_that_works_twice_adds_its_gradients(layer, given):
    weights, inputs, needs = weights_of(layer), inputs_of(given), needs_of(given)
    dy = np.ones_like(output(layer, weights, inputs))
    _, once = backward(layer, weights, inputs, dy, needs)
    into = {name: np.full_like(array, np.nan) for name, array in weights.items()}
    run = new_pass(layer, weights, BATCH, into=into)
    kept = [layer.forward(run, *inputs)[1] for _ in range(2)]
    for saved in kept:
        layer.backward(run, saved, dy, needs)
    for name, gradient in run.gradients.items():
        np.testing.assert_allclose(gradient, 2 * once[name], rtol=1e-13, err_msg=name)


@every_layer
@for_each("dtype", ["float32", "float64"])
def test_a_layer_keeps_the_dtype_and_what_it_is_given(layer, given, dtype):
    weights, inputs = weights_of(layer, dtype), inputs_of(given, dtype)
    before = [array.copy() for array in (*inputs, *weights.values())]
    y = output(layer, weights, inputs, dtype)
    dy = np.ones_like(y)
    found, gradients = backward(layer, weights, inputs, dy, needs_of(given), dtype)
    slopes = [dx for dx in found if dx is not None]
    assert {y.dtype, *(array.dtype for array in (*slopes, *gradients.values()))} == {
        np.dtype(dtype)
    }
    assert {name: g.shape for name, g in gradients.items()} == {
        p.name: p.shape for p in layer.parameters()
    }
    assert [dx.shape for dx in slopes] == [x.shape for x in inputs if x.dtype.kind == "f"]
    for array, kept in zip((*inputs, *weights.values()), before, strict=True):
        np.testing.assert_array_equal(array, kept)
    np.testing.assert_array_equal(dy, 1)


@every_layer
def test_what_comes_out_has_the_shape_that_is_promised(layer, given):
    y = output(layer, weights_of(layer), inputs_of(given))
    assert y.shape == (BATCH, *layer.output_shape(*shapes_of(given)))


@every_layer
def test_gradients_become_ready_once_each(layer, given):
    assert sorted(layer.ready_order()) == sorted(p.name for p in layer.parameters())


@every_layer
@for_each("need", [True, False])
def test_kernels_ask_for_more_bytes_with_wider_numbers_and_for_equal_arithmetic(layer, given, need):
    shapes, needs = shapes_of(given), [need and one for one in needs_of(given)]
    for work in ("forward_cost", "backward_cost"):
        more = (needs,) if work == "backward_cost" else ()
        narrow, wide = (getattr(layer, work)(shapes, itemsize, *more) for itemsize in (4, 8))
        assert len(narrow) == len(wide)
        for four, eight in zip(narrow, wide, strict=True):
            assert all(isfinite(figure) and figure >= 0 for figure in four)
            assert four.nbytes + four.fixed > 0
            assert eight.flops == four.flops
            assert four.nbytes <= eight.nbytes <= 2 * four.nbytes
            assert four.fixed <= eight.fixed <= 2 * four.fixed


@every_layer
def test_backward_without_gradients_of_inputs_is_no_dearer(layer, given):
    shapes = shapes_of(given)
    whole = layer.backward_cost(shapes, 4, needs_of(given))
    part = layer.backward_cost(shapes, 4, [False] * len(shapes))
    assert len(part) <= len(whole)
    for figure in range(3):
        assert sum(k[figure] for k in part) <= sum(k[figure] for k in whole)


@every_layer
def test_what_backward_needs_is_kept(layer, given):
    kept = [kept_nbytes(layer, shapes_of(given), itemsize) for itemsize in (4, 8)]
    assert 0 <= kept[0] <= kept[1] <= 2 * kept[0]


@every_layer
def test_a_layer_refuses_samples_that_do_not_fit_or_takes_them_as_it_says(layer, given):
    odd = [
        Tokens((11, 13, 17), one.known) if isinstance(one, Tokens) else (11, 13, 17)
        for one in given
    ]
    try:
        promised = layer.output_shape(*shapes_of(odd))
    except ShapeError as error:
        assert str(error)
        return
    y = output(layer, weights_of(layer), inputs_of(odd))
    assert y.shape == (BATCH, *promised)
