"""What the tests of the image models share: published figures, torch's orders, numerics."""

import re
from hashlib import sha256
from math import prod, sqrt

import numpy as np
import pytest
from layer_checks import finished
from pydantic import TypeAdapter, ValidationError

from simdp.spec import problems
from simdp.workload.execution import GraphExecutor, call_dtypes
from simdp.workload.layers.base import Pass
from simdp.workload.models import PRESETS, AnyModel
from simdp.workload.precision import Full
from simdp.workload.step_costs import forward_flops


def model(kind, **keys):
    return TypeAdapter(AnyModel).validate_python({"kind": kind, **keys})


def refusal(**raw):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(AnyModel).validate_python(raw)
    return [found.line for found in problems(caught.value, raw)]


# Published figures -------------------------------------------------------------------------------


def published(name, what):
    """The number that a preset's source begins with."""
    return float(re.match(r"[\d,.]+\d", PRESETS.read(name)["source"][what])[0].replace(",", ""))


def assert_has_published_parameters(name):
    assert model(name).num_parameters() == published(name, "parameters")


def giga_multiply_adds(chosen):
    """Of forward on one sample, products only."""
    return forward_flops(chosen.graph, chosen.known_shapes()).products / 2e9


# Torch's orders ----------------------------------------------------------------------------------


def digest(lines):
    return sha256("\n".join(lines).encode()).hexdigest()[:16]


def parameter_digest(chosen):
    return digest(f"{p.name} {list(p.shape)}" for p in chosen.parameters())


def buffer_digest(chosen):
    return digest(f"{b.name} {list(b.shape)}" for b in chosen.graph.buffers)


def ready_digest(chosen):
    return digest(chosen.ready_order())


# Numerics ----------------------------------------------------------------------------------------


def pseudo(shape, seed):
    """Numbers between -0.5 and 0.5 that any program can make, bit for bit."""
    k = np.arange(prod(shape), dtype=np.int64)
    return (((k * k * 40503 + 977 * k * (seed + 1) + 31 * seed) % 65521) / 65521 - 0.5).reshape(
        shape
    )


def weights(chosen):
    """Every parameter as pseudo numbers, scaled so that signals neither die nor explode."""
    found = {}
    for seed, parameter in enumerate(chosen.parameters()):
        value = pseudo(parameter.shape, seed)
        if value.ndim > 1:
            value = value * 4 / sqrt(prod(parameter.shape[1:]))
        elif parameter.name.endswith("weight"):
            value = 1 + value
        found[parameter.name] = value
    return found


def images(chosen, batch=2):
    return pseudo((batch, *chosen.known_shapes()[0]), 1000)


class Run:
    """One forward and backward; the loss is the sum of outputs times pseudo slopes."""

    def __init__(self, chosen, values, x):
        graph, dtype = chosen.graph, str(x.dtype)
        self.executor = GraphExecutor(graph, call_dtypes(graph, Full(), dtype), dtype)
        self.buffers = {
            b.name: np.full(b.shape, b.value, "int64" if b.integer else dtype)
            for b in graph.buffers
        }
        self.run = Pass(values, self.buffers, samples=np.arange(len(x)))
        self.outputs, self.kept = finished(self.executor.forward(self.run, [x]))
        self.slopes = [
            (weight * pseudo(y.shape, 2000 + number)).astype(dtype)
            for number, (y, (_, weight)) in enumerate(zip(self.outputs, graph.outputs, strict=True))
        ]

    @property
    def loss(self):
        return sum(float(np.vdot(s, y)) for s, y in zip(self.slopes, self.outputs, strict=True))

    def gradients(self):
        finished(self.executor.backward(self.run, self.kept, self.slopes))
        return self.run.gradients


def assert_agrees_with_torch(chosen, loss, norm):
    """The loss, and the norm of all gradients, of torch 2.13.0 in float64."""
    run = Run(chosen, weights(chosen), images(chosen))
    gradients = run.gradients()
    assert run.loss == pytest.approx(loss, rel=1e-9)
    assert sqrt(sum(float(np.vdot(g, g)) for g in gradients.values())) == pytest.approx(
        norm, rel=1e-9
    )


def assert_gradients_are_differences(chosen, every=1, step=1e-6):
    """Move every so manieth parameter along a direction of its own, both ways."""
    values, x = weights(chosen), images(chosen)
    gradients = Run(chosen, values, x).gradients()
    assert list(gradients) == chosen.ready_order()
    for seed, name in list(enumerate(values))[::every]:
        direction = pseudo(values[name].shape, 3000 + seed)
        ahead, behind = (
            Run(chosen, {**values, name: values[name] + sign * step * direction}, x).loss
            for sign in (1, -1)
        )
        slope = float(np.vdot(gradients[name], direction))
        assert (ahead - behind) / (2 * step) == pytest.approx(slope, rel=1e-5, abs=1e-7), name


def assert_runs_in_float32(chosen):
    """Nothing on the way turns into float64."""
    values = {name: value.astype(np.float32) for name, value in weights(chosen).items()}
    run = Run(chosen, values, images(chosen).astype(np.float32))
    assert {y.dtype for y in run.outputs} == {np.dtype(np.float32)}
    assert {g.dtype for g in run.gradients().values()} == {np.dtype(np.float32)}
