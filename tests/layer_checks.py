"""What tests of layers share: arrays for a layer, its passes, and differences as an oracle."""

from math import prod

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from simdp.spec import problems
from simdp.workload.layers import AnyModule
from simdp.workload.layers.base import Layer, Pass, ShapeError


def drawn(*shape, seed=0):
    """Normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape)


def weights_of(module_or_graph, dtype="float64", seed=0):
    """Parameters drawn at random, all of them around 1 so that none is idle."""
    random = np.random.default_rng(seed)
    found = module_or_graph.parameters
    listed = found() if callable(found) else found
    drawn = {p.name: 1 + 0.5 * random.standard_normal(p.shape) for p in listed}
    return {name: np.asarray(array, dtype=dtype) for name, array in drawn.items()}


def buffers_of(layer, dtype="float64"):
    """Buffers as a run starts with them."""
    return {
        b.name: np.full(b.shape, b.value, dtype="int64" if b.integer else dtype)
        for b in layer.buffers()
    }


def new_pass(layer: Layer, weights, batch, dtype="float64", **more):
    """A pass of one rank over samples 0, 1, ..., with fresh buffers."""
    return Pass(weights, buffers=buffers_of(layer, dtype), samples=np.arange(batch), **more)


def differences(function, at, step=1e-6):
    """Central differences of a number by every element of an array."""
    gradient = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        there = at[index]
        values = []
        for moved in (there + step, there - step):
            at[index] = moved
            values.append(function())
        at[index] = there
        gradient[index] = (values[0] - values[1]) / (2 * step)
    return gradient


def assert_gradient(gradient, function, at, rtol=1e-6, atol=1e-8, held=None, name=""):
    """A gradient is that of a number, along each axis of a small array, or three random directions.

    ``held`` is an index of what has no gradient, whatever moves.
    """
    if held is not None:
        assert not gradient[held].any(), name
    random = np.random.default_rng(5)
    if at.size <= 6:
        directions = np.eye(at.size).reshape(-1, *at.shape)
    else:
        directions = random.standard_normal((3, *at.shape))
    there = at.copy()
    for direction in directions:
        if held is not None:
            direction[held] = 0
        values = []
        for sign in (1, -1):
            at[...] = there + sign * 1e-6 * direction
            values.append(function())
        at[...] = there
        size = np.linalg.norm(gradient) * np.linalg.norm(direction)
        found, wanted = (values[0] - values[1]) / 2e-6, float(np.vdot(gradient, direction))
        assert abs(found - wanted) <= rtol * size + atol * np.sqrt(at.size), (name, found, wanted)


def other_memory(x, order):
    """The same array with its axes in another order of memory."""
    back = np.argsort(order)
    return np.ascontiguousarray(x.transpose(order)).transpose(back)


def fits(layer, *shapes):
    """Whether a layer takes samples of these shapes."""
    try:
        layer.output_shape(*shapes)
    except ShapeError:
        return False
    return True


def finished(script):
    """Run a generator that never yields; return its result."""
    with pytest.raises(StopIteration) as stop:
        next(script)
    return stop.value.value


def forward(layer, *inputs, weights=None):
    """What comes out, and a function that gives the gradients of inputs and parameters."""
    run = new_pass(layer, weights_of(layer) if weights is None else weights, len(inputs[0]))
    y, saved = layer.forward(run, *inputs)

    def backward(dy):
        found = layer.backward(run, saved, dy, [True] * len(inputs))
        return found, run.gradients

    return y, backward


def kept_nbytes(layer, inputs, itemsize):
    """Bytes per sample of everything that a layer alone keeps for backward."""
    kept = layer.kept(inputs, itemsize)
    elements = sum(prod(inputs[i]) for i in kept.inputs)
    elements += prod(layer.output_shape(*inputs)) * kept.output
    return elements * itemsize + kept.nbytes


def refusal(**raw):
    """The lines in which a layer of these arguments is refused."""
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(AnyModule).validate_python(raw)
    return [found.line for found in problems(caught.value, raw)]
