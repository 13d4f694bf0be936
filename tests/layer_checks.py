"""What tests of layers share: arrays for a layer, its passes, and differences as an oracle."""

import numpy as np

from simdp.workload.layers import Layer
from simdp.workload.layers.base import Pass


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
