"""Every optimizer against torch's trajectories, and as the update of any tensor in place."""

import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from simdp.spec import problems
from simdp.workload.optimizers import OPTIMIZERS, AnyOptimizer
from simdp.workload.optimizers.base import BLOCK

GOLDEN = Path(__file__).parents[1] / "golden"
SETTINGS = json.loads((GOLDEN / "g05_optim.json").read_text())["optimizers"]

every_optimizer = pytest.mark.parametrize("kind", OPTIMIZERS)


def optimizer(kind, **options):
    return TypeAdapter(AnyOptimizer).validate_python({"kind": kind, **options})


@pytest.fixture(scope="module")
def recorded():
    with np.load(GOLDEN / "g05_optim.npz") as archive:
        return dict(archive)


# torch -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETTINGS)
def test_weights_and_state_follow_torch(name, recorded):
    setting = SETTINGS[name]
    chosen = optimizer(setting["cls"].lower(), **setting["kwargs"])
    for letter in ("W", "b"):
        weights = recorded[f"{letter}0"].copy()
        state = chosen.new_state(weights)
        for step, gradient in enumerate(recorded[f"{name}_g{letter}"]):
            kept = gradient.copy()
            chosen.step(weights, gradient, state, chosen.lr, step + 1)
            wanted = recorded[f"{name}_{letter}"][step]
            np.testing.assert_allclose(weights, wanted, rtol=1e-12, atol=1e-12)
            np.testing.assert_array_equal(gradient, kept)
        if letter == "W":
            for tensor in set(setting["final_state_keys"]) - {"step"}:
                wanted = recorded[f"{name}_state_{tensor}"]
                np.testing.assert_allclose(state[tensor], wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SETTINGS)
def test_state_has_torchs_names(name):
    setting = SETTINGS[name]
    chosen = optimizer(setting["cls"].lower(), **setting["kwargs"])
    assert sorted(chosen.state_names()) == sorted(set(setting["final_state_keys"]) - {"step"})


@pytest.mark.parametrize(
    ("kind", "defaults"),
    [
        ("sgd", {"lr": 1e-3, "momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False}),
        ("adam", {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0}),
        ("adamw", {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}),
    ],
)
def test_defaults_are_torchs(kind, defaults):
    chosen = optimizer(kind)
    assert {name: getattr(chosen, name) for name in defaults} == defaults
    assert not chosen.maximize


# Every optimizer ---------------------------------------------------------------------------------


@every_optimizer
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_tensor_larger_than_a_block_is_updated_as_its_parts_are(kind, dtype):
    chosen, random = optimizer(kind), np.random.default_rng(0)
    shape = (3, BLOCK // 2 + 5)
    whole, gradient = (random.standard_normal(shape).astype(dtype) for _ in range(2))
    rows = whole.copy()
    state, states = chosen.new_state(whole), [chosen.new_state(row) for row in rows]
    for t in (1, 2, 3):
        chosen.step(whole, gradient, state, 0.1, t)
        for row, grad, own in zip(rows, gradient, states, strict=True):
            chosen.step(row, grad, own, 0.1, t)
    np.testing.assert_array_equal(whole, rows)
    assert whole.dtype == dtype
    assert all(tensor.dtype == dtype for tensor in state.values())


@every_optimizer
def test_state_is_zero_and_shaped_like_the_parameter(kind):
    parameter = np.ones((2, 3), np.float32)
    for tensor in optimizer(kind).new_state(parameter).values():
        assert tensor.shape == (2, 3)
        assert tensor.dtype == np.float32
        assert not tensor.any()


@every_optimizer
def test_bytes_moved_are_gradient_in_and_the_rest_in_and_out(kind):
    chosen = optimizer(kind)
    tensors = 0 if kind == "none" else 3 + 2 * len(chosen.state_names())
    assert chosen.nbytes_moved(10, 4) == tensors * 40


@pytest.mark.parametrize(
    ("options", "tensors"),
    [({}, 0), ({"momentum": 0.9}, 1), ({"momentum": 0.9, "nesterov": True}, 1)],
)
def test_sgd_keeps_a_buffer_only_with_momentum(options, tensors):
    assert len(optimizer("sgd", **options).state_names()) == tensors


def test_none_leaves_weights_and_takes_no_bytes():
    weights = np.ones(3)
    chosen = optimizer("none")
    chosen.step(weights, np.ones(3), chosen.new_state(weights), 1.0, 1)
    assert weights.tolist() == [1, 1, 1]
    assert chosen.nbytes_moved(10**6, 8) == 0


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        ({"kind": "sgd", "lr": -1}, "lr: -1 is out of range; it must be >= 0.0."),
        ({"kind": "sgd", "momentum": -1}, "momentum: -1 is out of range; it must be >= 0.0."),
        (
            {"kind": "sgd", "nesterov": True},
            "nesterov needs a momentum above 0 and no dampening; set momentum: 0.9.",
        ),
        (
            {"kind": "sgd", "nesterov": True, "momentum": 0.9, "dampening": 0.1},
            "nesterov needs a momentum above 0 and no dampening; set momentum: 0.9.",
        ),
        ({"kind": "adam", "eps": -1}, "eps: -1 is out of range; it must be >= 0.0."),
        ({"kind": "adam", "betas": [1, 0.9]}, "betas.0: 1 is out of range; it must be < 1.0."),
        (
            {"kind": "adamw", "betas": [0.9, -0.1]},
            "betas.1: -0.1 is out of range; it must be >= 0.0.",
        ),
        (
            {"kind": "sgd", "learning_rate": 1},
            "unknown key 'learning_rate'; known: lr, momentum, dampening, weight_decay, nesterov, "
            "maximize.",
        ),
        (
            {"kind": "sdg"},
            "unknown optimizer 'sdg'; known: adam, adamw, none, sgd. Did you mean 'sgd'?",
        ),
    ],
)
def test_a_wrong_optimizer_is_refused(raw, line):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(AnyOptimizer).validate_python(raw)
    assert [found.line for found in problems(caught.value, raw)] == [line]
