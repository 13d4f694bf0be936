"""Layers against real torch in float64: golden/g15_layers and g15b_layers, 2.13.0 and 2.14.1."""

from pathlib import Path

import numpy as np
import pytest
from for_each import for_each
from layer_checks import new_pass
from pydantic import TypeAdapter

from simdp.workload.layers import AnyModule
from simdp.workload.layers.rnn import Weights, walk, walk_back

GOLDEN = [Path(__file__).parents[2] / "golden" / f"{name}_layers.npz" for name in ("g15", "g15b")]

PLAIN = {
    "GroupNorm(4,8)": {"kind": "group_norm", "num_groups": 4, "num_channels": 8},
    "Conv1d(4,6,3,padding=1)": {
        "kind": "conv1d",
        "in_channels": 4,
        "out_channels": 6,
        "kernel_size": 3,
        "padding": 1,
    },
    "ConvTranspose2d(3,4,3)": {
        "kind": "conv_transpose2d",
        "in_channels": 3,
        "out_channels": 4,
        "kernel_size": 3,
    },
    "InstanceNorm2d(3)": {"kind": "instance_norm2d", "num_features": 3},
    "PReLU(4)": {"kind": "prelu", "num_parameters": 4},
    "SiLU": {"kind": "silu"},
    "GELU(tanh)": {"kind": "gelu_tanh"},
    "GLU": {"kind": "glu"},
    "AvgPool2d(3,2,1)": {"kind": "avg_pool2d", "kernel_size": 3, "stride": 2, "padding": 1},
    "Upsample(2,nearest)": {"kind": "upsample", "scale_factor": 2},
    "Upsample(2,bilinear)": {"kind": "upsample", "scale_factor": 2, "mode": "bilinear"},
    "Upsample((2,3),bilinear,align_corners)": {
        "kind": "upsample",
        "scale_factor": [2, 3],
        "mode": "bilinear",
        "align_corners": True,
    },
    "RMSNorm((3,4)), default eps": {"kind": "rms_norm", "normalized_shape": [3, 4]},
    "LayerNorm((3,4))": {"kind": "layer_norm", "normalized_shape": [3, 4]},
    "LSTM(3,4) 2 layers proj_size=2 bidirectional batch_first": {
        "kind": "lstm",
        "input_size": 3,
        "hidden_size": 4,
        "num_layers": 2,
        "proj_size": 2,
        "bidirectional": True,
    },
}
RECURRENT = {
    "LSTM(5,4) 2 layers bidirectional batch_first": {
        "kind": "lstm",
        "input_size": 5,
        "hidden_size": 4,
        "num_layers": 2,
        "bidirectional": True,
    },
    "LSTM(3,6) proj_size=2, time first": {
        "kind": "lstm",
        "input_size": 3,
        "hidden_size": 6,
        "proj_size": 2,
    },
    "GRU(4,3), time first": {"kind": "gru", "input_size": 4, "hidden_size": 3},
    "RNN(4,3) tanh": {"kind": "rnn", "input_size": 4, "hidden_size": 3},
}


@pytest.fixture(scope="module")
def golden():
    found = {}
    for path in GOLDEN:
        with np.load(path) as stored:
            found |= dict(stored)
    return found


def made(options):
    return TypeAdapter(AnyModule).validate_python({"name": "l", **options})


def close(found, wanted, what=""):
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13, err_msg=what)


@for_each("case", PLAIN)
def test_a_layer_equals_torchs(golden, case):
    layer = made(PLAIN[case])
    weights = {p.name: golden[f"{case}.param.{p.name[2:]}"] for p in layer.parameters()}
    assert {p.name: p.shape for p in layer.parameters()} == {
        name: array.shape for name, array in weights.items()
    }
    x = golden[f"{case}.x"]
    run = new_pass(layer, weights, len(x))
    y, saved = layer.forward(run, x)
    close(y, golden[f"{case}.out0"])
    (dx,) = layer.backward(run, saved, golden[f"{case}.cotangent0"], [True])
    close(dx, golden[f"{case}.grad.x"])
    for name, gradient in run.gradients.items():
        close(gradient, golden[f"{case}.grad.{name[2:]}"], name)


def test_recurrent_layers_have_torchs_parameters_in_torchs_order(golden):
    for case, options in RECURRENT.items():
        stored = [key.split(".param.")[1] for key in golden if key.startswith(f"{case}.param.")]
        assert [p.name for p in made(options).parameters()] == [f"l.{name}" for name in stored]


@for_each("case", RECURRENT)
def test_a_recurrence_equals_torchs_with_its_states(golden, case):
    """Also the last states and the gradients of the first, which the layers leave at 0."""
    layer = made(RECURRENT[case])
    steps_first = case.endswith("time first")

    def along(name):
        array = golden[f"{case}.{name}"]
        return array if steps_first else array.swapaxes(0, 1)

    def weights(part, suffix):
        parts = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
        parts += ["weight_hr"] * (layer.state_size != layer.hidden_size)
        return Weights(*(golden[f"{case}.{part}.{name}_{suffix}"] for name in parts))

    count, cell, stack, h = layer.cell.states, layer.cell, [], along("x")
    ways = ["", "_reverse"][: 1 + layer.bidirectional]
    zeros = np.zeros((h.shape[1], layer.hidden_size))
    given = f"{case}.state0" in golden

    def states(lead, place, first=0):
        return tuple(golden[f"{case}.{lead}{first + i}"][place] for i in range(count))

    for number in range(layer.num_layers):
        made_here = []
        for way, suffix in enumerate(ways):
            place = number * len(ways) + way
            start = states("state", place) if given else (zeros,) * count
            y, end, saved = walk(cell, h, weights("param", f"l{number}{suffix}"), start, way == 1)
            made_here.append(y)
            for found, wanted in zip(end, states("out", place, 1), strict=True):
                close(found, wanted)
            stack.append((number, suffix, place, saved))
        h = np.concatenate(made_here, axis=2)
    close(h, along("out0"))
    slope = along("cotangent0")
    for number in reversed(range(layer.num_layers)):
        parts, below = np.split(slope, len(ways), axis=2), 0
        for way in range(len(ways)):
            _, suffix, place, saved = stack[number * len(ways) + way]
            ours = weights("param", f"l{number}{suffix}")
            end = states("cotangent", place, 1)
            dx, found, start = walk_back(cell, saved, ours, parts[way], end)
            below = below + dx
            for gradient, wanted in zip(found, weights("grad", f"l{number}{suffix}"), strict=True):
                if wanted is not None:
                    close(gradient, wanted)
            for i in range(count * given):
                close(start[i], golden[f"{case}.grad.state{i}"][place])
        slope = below
    close(slope, along("grad.x"))
