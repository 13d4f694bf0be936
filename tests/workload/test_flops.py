"""FLOPs of whole models, against counts by hand."""

import pytest
from pydantic import TypeAdapter

from simdp.workload.models import AnyModel
from simdp.workload.step_costs import forward_flops


def model(kind, **keys):
    return TypeAdapter(AnyModel).validate_python({"kind": kind, **keys})


def backward_products(graph, inputs):
    """FLOPs of backward in the layers that multiply matrices."""
    shapes = graph.shapes(inputs)
    return sum(
        kernel.flops
        for call, needs in zip(graph.calls, graph.needs, strict=True)
        if call.layer.autocast == "lower"
        for kernel in call.layer.backward_cost([shapes[v] for v in call.inputs], 4, needs)
    )


def test_products_count_two_for_a_multiply_add():
    chosen = model("mlp", widths=[4, 5, 3])
    forward = forward_flops(chosen.graph, [(4,)])
    assert forward.products == 2 * (4 * 5 + 5 * 3)
    assert forward.total == forward.products + 5  # the relu
    # gradients of both weights and of the hidden layer, and the sums that are those of the biases
    assert backward_products(chosen.graph, [(4,)]) == 2 * (4 * 5 + 2 * 5 * 3) + 5 + 3


def test_backward_of_a_deep_model_takes_about_twice_forward():
    chosen = model("resnet50")
    inputs = chosen.known_shapes()
    forward = forward_flops(chosen.graph, inputs)
    first = 2 * 64 * 112**2 * 3 * 7**2  # the images want no gradient
    assert backward_products(chosen.graph, inputs) == pytest.approx(
        2 * forward.products - first + 1000
    )
    assert forward.total == pytest.approx(forward.products, rel=0.05)


def test_flops_follow_the_shapes_that_are_given():
    graph = model("resnet18").graph
    large, small = (forward_flops(graph, [(3, size, size)]).products for size in (448, 224))
    fc = 2 * 512 * 1000
    assert large - fc == 4 * (small - fc)
