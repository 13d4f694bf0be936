"""LSTM, GRU and RNN: stacks, directions, dropout, costs and what is refused."""

import numpy as np
import pytest
from for_each import for_each
from layer_checks import drawn, kept_nbytes, new_pass, refusal, weights_of

from simdp.workload.layers import LAYERS
from simdp.workload.layers.base import ShapeError
from simdp.workload.layers.rnn import GRU, LSTM, RNN

every_kind = pytest.mark.parametrize("kind", ["gru", "lstm", "rnn"])


def output(layer, weights, x):
    return layer.forward(new_pass(layer, weights, len(x)), x)[0]


@every_kind
def test_a_stack_is_one_layer_after_the_other(kind):
    stack = LAYERS[kind](name="s", input_size=3, hidden_size=2, num_layers=2, bidirectional=True)
    weights, h = weights_of(stack), drawn(4, 5, 3)
    wanted = output(stack, weights, h)
    for number, fan_in in enumerate((3, 4)):
        ways = []
        for suffix in ("", "_reverse"):
            one = LAYERS[kind](name="s", input_size=fan_in, hidden_size=2)
            own = {
                p.name: weights[p.name.replace("_l0", f"_l{number}{suffix}")]
                for p in one.parameters()
            }
            turned = h[:, ::-1] if suffix else h
            y = output(one, own, np.ascontiguousarray(turned))
            ways.append(y[:, ::-1] if suffix else y)
        h = np.concatenate(ways, axis=2)
    np.testing.assert_allclose(wanted, h, rtol=1e-13)


@every_kind
def test_what_comes_out_at_a_step_knows_no_later_one(kind):
    layer = LAYERS[kind](name="s", input_size=3, hidden_size=2)
    weights, x = weights_of(layer), drawn(2, 6, 3)
    np.testing.assert_allclose(
        output(layer, weights, x)[:, :4], output(layer, weights, x[:, :4]), rtol=1e-13
    )


def test_dropout_acts_between_layers_and_not_after_training():
    plain = {"name": "s", "input_size": 3, "hidden_size": 2, "num_layers": 2}
    dropped, whole = LSTM(**plain, dropout=0.5), LSTM(**plain)
    weights, x = weights_of(whole), drawn(2, 4, 3)
    assert not np.allclose(output(dropped, weights, x), output(whole, weights, x))
    np.testing.assert_array_equal(
        output(dropped.evaluated(), weights, x), output(whole, weights, x)
    )


def test_a_step_costs_a_product_and_the_input_one_for_all():
    layer = LSTM(name="s", input_size=3, hidden_size=2)
    given, *steps = layer.forward_cost([(5, 3)], 4)
    assert given.flops == 2 * 5 * 8 * 3
    assert [step.flops for step in steps] == [2 * 8 * 2] * 5
    assert given.fixed == 4 * 8 * (3 + 1)
    backward = layer.backward_cost([(5, 3)], 4, [True])
    assert sum(k.flops for k in backward) == 2 * sum(k.flops for k in (given, *steps))
    no_input = layer.backward_cost([(5, 3)], 4, [False])
    assert sum(k.flops for k in backward) - sum(k.flops for k in no_input) == given.flops
    projected = LSTM(name="s", input_size=3, hidden_size=2, proj_size=1)
    _, step, *_ = projected.forward_cost([(5, 3)], 4)
    assert (step.flops, step.fixed) == (2 * (8 * 1 + 2), 4 * (8 * (1 + 1) + 2))
    assert kept_nbytes(projected, [(5, 3)], 4) == 4 * 5 * (3 + 1 + (4 + 1 + 1) * 2)


def test_gates_and_states_of_every_step_are_kept():
    length, hidden = 5, 2
    for kind, each in ((LSTM, 4 + 1), (GRU, 3), (RNN, 1)):
        layer = kind(name="s", input_size=3, hidden_size=hidden)
        values = length * (3 + hidden + each * hidden)
        assert kept_nbytes(layer, [(length, 3)], 4) == 4 * values


def test_weights_start_within_one_over_the_root_of_the_hidden_size():
    layer = GRU(name="s", input_size=3, hidden_size=4)
    assert {p.initial.size for p in layer.parameters()} == {0.5}


@for_each(
    ("options", "line"),
    [
        (
            {"batch_first": False},
            "batch_first: false puts the steps first, but samples come first here; write true, or "
            "leave it out.",
        ),
        (
            {"dropout": 0.5},
            "dropout: 0.5 acts between layers, but num_layers is 1; leave it out, or write more "
            "layers.",
        ),
        (
            {"proj_size": 2},
            "proj_size: 2 is not less than hidden_size, 2; write less, or 0 for no projection.",
        ),
    ],
)
def test_what_does_not_fit_is_refused(options, line):
    assert refusal(kind="lstm", name="s", input_size=3, hidden_size=2, **options) == [line]


def test_sequences_of_other_features_are_refused():
    with pytest.raises(ShapeError, match=r"takes 3 features, but gets samples of \(5, 4\)"):
        LSTM(name="s", input_size=3, hidden_size=2).output_shape((5, 4))
