"""A projection takes some rows of a weight that others share."""

import numpy as np
from for_each import for_each
from layer_checks import drawn, forward, new_pass, weights_of

from simdp.workload.layers.attention import MultiheadAttention
from simdp.workload.layers.base import GraphBuilder
from simdp.workload.layers.linear import Projection
from simdp.workload.layers.tensor_ops import Scale


def projection(first, last, bias="in_proj_bias"):
    return Projection(
        name="p",
        weight="in_proj_weight",
        bias=bias,
        in_features=4,
        out_features=12,
        first=first,
        last=last,
        bound=1.0,
    )


@for_each("bias", ["in_proj_bias", ""])
@for_each("order", [(0, 1), (1, 0)])
@for_each("room", [True, False])
def test_parts_of_a_weight_make_what_the_whole_makes(bias, order, room):
    whole, parts = projection(0, 12, bias), [projection(0, 4, bias), projection(4, 12, bias)]
    weights, x, dy = weights_of(whole), drawn(2, 3, 4), drawn(2, 3, 12, seed=1)
    y, backward = forward(whole, x, weights=weights)
    (dx,), wanted = backward(dy)
    into = {name: np.full_like(w, np.nan) for name, w in weights.items()} if room else {}
    run = new_pass(whole, weights, 2, into=into)
    slices = (slice(0, 4), slice(4, 12))
    done = [part.forward(run, x) for part in parts]
    np.testing.assert_allclose(np.concatenate([one for one, _ in done], axis=2), y, rtol=1e-13)
    total = 0.0
    for number in order:
        one, saved = parts[number], done[number][1]
        total += one.backward(run, saved, dy[..., slices[number]].copy(), [True])[0]
    np.testing.assert_allclose(total, dx, rtol=1e-12)
    assert set(run.gradients) == set(wanted)
    for name, gradient in run.gradients.items():
        np.testing.assert_allclose(gradient, wanted[name], rtol=1e-13, err_msg=name)
        assert (gradient is into.get(name)) == room


def test_a_weight_in_parts_is_registered_once_and_ready_with_its_first_part():
    block = MultiheadAttention(name="m", embed_dim=4, num_heads=2)
    graph = GraphBuilder("x", "memory")
    scaled = Scale(name="s", factor=1.0)
    h = block.add_to(graph, graph.input("x"), graph.call(scaled, graph.input("memory")))
    built = graph.build(h)
    names = ["m.in_proj_weight", "m.in_proj_bias", "m.out_proj.weight", "m.out_proj.bias"]
    assert [p.name for p in built.parameters] == names
    assert list(built.ready_order) == names[::-1]
    assert [p.shape for p in built.parameters] == [(12, 4), (12,), (4, 4), (4,)]
