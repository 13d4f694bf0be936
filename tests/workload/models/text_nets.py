"""What the tests of BERT and GPT-2 share: tokens, one pass over them, and torch's figures."""

from math import sqrt

import numpy as np
import pytest
from image_nets import model, parameter_digest, pseudo, published, ready_digest, weights
from layer_checks import finished

from simdp.strategies.ddp import DDP
from simdp.workload.execution import GraphExecutor, call_dtypes
from simdp.workload.layers.base import Pass
from simdp.workload.precision import Full
from simdp.workload.step_costs import forward_flops

FULL = np.array([[3, 1, 4, 1, 5], [2, 6, 5, 8, 9], [7, 0, 3, 2, 8]])
PADDED = np.array([[3, 1, 4, 1, 5], [2, 6, 5, 0, 0], [7, 0, 0, 0, 0]])


class Run:
    """One forward; the loss is the sum of outputs times pseudo slopes."""

    def __init__(self, chosen, values, tokens):
        graph, dtype = chosen.graph, next(iter(values.values())).dtype.name
        self.executor = GraphExecutor(graph, call_dtypes(graph, Full(), dtype), dtype)
        self.run = Pass(values, samples=np.arange(len(tokens)))
        (self.output,), self.kept = finished(self.executor.forward(self.run, [tokens]))
        self.slopes = pseudo(self.output.shape, 2000).astype(dtype)

    @property
    def loss(self):
        return float(np.vdot(self.slopes, self.output))

    def gradients(self):
        finished(self.executor.backward(self.run, self.kept, [self.slopes]))
        return self.run.gradients


def assert_agrees_with_torch(chosen, tokens, loss, norm, slope):
    """Of torch in float64: the loss, the norm of all gradients, and their sum over directions."""
    run = Run(chosen, weights(chosen), tokens)
    gradients = run.gradients()
    assert sorted(gradients) == sorted(chosen.ready_order())
    along = [
        np.vdot(gradients[p.name], pseudo(p.shape, 3000 + seed))
        for seed, p in enumerate(chosen.parameters())
    ]
    assert run.loss == pytest.approx(loss, rel=1e-11)
    assert sqrt(sum(np.vdot(g, g) for g in gradients.values())) == pytest.approx(norm, rel=1e-11)
    assert sum(along) == pytest.approx(slope, rel=1e-11)


def assert_has_torchs_tensors(chosen, elements, tensors, ready):
    assert chosen.num_parameters() == elements
    assert parameter_digest(chosen) == tensors
    assert ready_digest(chosen) == ready
    assert chosen.graph.unused == ()


def bucket_nbytes(chosen, itemsize=4):
    """Bytes of each bucket of DDP, from the second step on."""
    sizes = {p.name: p.num_elements * itemsize for p in chosen.parameters()}
    buckets = DDP().buckets(chosen.parameters(), chosen.ready_order(), itemsize, 1)
    return [sum(sizes[name] for name in names) for names in buckets]


def assert_has_the_published_flops(name):
    """Products alone and all arithmetic, both within 2 % of the preset's source."""
    chosen = model(name)
    found = forward_flops(chosen.graph, chosen.known_shapes())
    for figure in found:
        assert figure / 1e9 == pytest.approx(published(name, "flops"), rel=0.02)
