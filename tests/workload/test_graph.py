"""Graph: who is registered, who is called, and in which order gradients become ready."""

import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from small_layers import Scale, Sum

from simdp.workload.layers.base import GraphBuilder, ShapeError
from simdp.workload.layers.batchnorm import SyncBatchNorm
from simdp.workload.layers.linear import Linear


def scale(name, **options):
    return Scale(name=name, **{"tensor": f"{name}.w", **options})


def chain(*layers, registered=()):
    """Layers one after the other; some may be registered before that."""
    graph = GraphBuilder("x")
    for layer in registered:
        graph.register(layer)
    h = graph.input("x")
    for layer in layers:
        h = graph.call(layer, h)
    return graph.build(h)


# Registration and calls --------------------------------------------------------------------------


def test_parameters_stand_in_the_order_of_registration_and_become_ready_against_the_calls():
    a, b, c = (scale(name) for name in "abc")
    graph = chain(b, c, a, registered=[a, b])
    assert [p.name for p in graph.parameters] == ["a.w", "b.w", "c.w"]
    assert graph.ready_order == ("a.w", "c.w", "b.w")


def test_within_a_layer_its_own_order_counts():
    linear = Linear(name="l", in_features=4, out_features=4)
    graph = chain(scale("a"), linear)
    assert [p.name for p in graph.parameters] == ["a.w", "l.weight", "l.bias"]
    assert graph.ready_order == ("l.bias", "l.weight", "a.w")


def test_a_layer_that_is_called_is_registered_once():
    layer = scale("a")
    assert chain(layer, layer, registered=[layer]).registered == (layer,)


def test_a_call_takes_the_values_of_earlier_calls():
    graph = GraphBuilder("x", "memory")
    x, memory = graph.input("x"), graph.input("memory")
    h = graph.call(scale("a"), x)
    y = graph.call(Sum(name="s"), h, memory)
    built = graph.build(y, (h, 0.3))
    assert built.inputs == ("x", "memory")
    assert [call.inputs for call in built.calls] == [(0,), (2, 1)]
    assert built.outputs == ((3, 1.0), (2, 0.3))


def test_an_input_that_there_is_not_is_our_own_mistake():
    with pytest.raises(ValueError, match="not in tuple"):
        GraphBuilder("x").input("y")


# Shared and unused parameters --------------------------------------------------------------------


def test_a_shared_parameter_is_ready_once_backward_has_left_its_first_use():
    first, last = scale("first", tensor="w"), scale("last", tensor="w")
    graph = chain(first, scale("between"), last)
    assert [p.name for p in graph.parameters] == ["w", "between.w"]
    assert graph.ready_at == (("w",), ("between.w",), ())
    assert graph.ready_order == ("between.w", "w")


def test_a_layer_that_is_called_twice_is_ready_after_its_first_call():
    twice = scale("twice")
    assert chain(twice, scale("between"), twice).ready_at == (("twice.w",), ("between.w",), ())


def test_a_shared_parameter_starts_as_the_layer_says_that_was_registered_first():
    one, other = (scale("a", tensor="w", start=start) for start in (2.0, 3.0))
    (parameter,) = chain(other, one, registered=[one]).parameters
    assert parameter.initial.size == 2.0


def test_parameters_of_layers_that_are_never_called_are_unused():
    graph = chain(scale("a"), scale("c"), registered=[scale("b")])
    assert graph.unused == ("b.w",)
    assert graph.ready_order == ("c.w", "a.w")


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=12),
    st.lists(st.integers(0, 5), max_size=6),
)
def test_every_parameter_is_ready_once_right_after_its_first_call(called, registered):
    layers = [scale(str(number)) for number in range(6)]
    graph = chain(*(layers[i] for i in called), registered=[layers[i] for i in registered])
    first_call = {f"{i}.w": called.index(i) for i in called}
    assert set(graph.ready_order) == set(first_call)
    assert [first_call[name] for name in graph.ready_order] == sorted(
        first_call.values(), reverse=True
    )
    for number, names in enumerate(graph.ready_at):
        assert all(first_call[name] == number for name in names)
    names = [f"{i}.w" for i in dict.fromkeys([*registered, *called])]
    assert [p.name for p in graph.parameters] == names
    assert sorted((*graph.unused, *graph.ready_order)) == sorted(names)


# Who wants a gradient ----------------------------------------------------------------------------


def test_inputs_want_a_gradient_where_something_below_them_learns():
    graph = GraphBuilder("x")
    x = graph.input("x")
    plain = graph.call(Sum(name="plain"), x)
    learned = graph.call(scale("a"), plain)
    both = graph.call(Sum(name="both"), plain, learned)
    above = graph.call(Sum(name="above"), both)
    assert graph.build(above).needs == ((False,), (False,), (False, True), (True,))


# Shapes ------------------------------------------------------------------------------------------


def test_shapes_follow_the_calls():
    graph = chain(
        Linear(name="l", in_features=4, out_features=3),
        Linear(name="m", in_features=3, out_features=7),
    )
    assert graph.shapes([(2, 4)]) == [(2, 4), (2, 3), (2, 7)]


@for_each(("name", "shown"), [("fc", "fc"), ("", "linear")])
def test_layers_that_do_not_chain_are_refused_by_name_or_else_by_kind(name, shown):
    wide = Linear(name=name, in_features=5, out_features=1)
    graph = chain(Linear(name="l", in_features=4, out_features=3), wide)
    with pytest.raises(ShapeError) as caught:
        graph.shapes([(4,)])
    assert str(caught.value) == f"{shown}: takes 5 features, but gets samples of shape (3,)"


def test_a_graph_says_whether_ranks_talk_in_the_middle_of_it():
    assert not chain(scale("a")).is_synchronised
    assert chain(SyncBatchNorm(name="bn", num_features=4)).is_synchronised
    assert not chain(
        scale("a"), registered=[SyncBatchNorm(name="bn", num_features=4)]
    ).is_synchronised
