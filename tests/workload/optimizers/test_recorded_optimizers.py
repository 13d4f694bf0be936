"""More optimizers against torch's trajectories; LAMB and LARS, which torch lacks, by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from for_each import for_each
from pydantic import TypeAdapter, ValidationError

from simdp.spec import problems
from simdp.workload.optimizers import OPTIMIZERS, AnyOptimizer

GOLDEN = Path(__file__).parents[2] / "golden"
SETTINGS = json.loads((GOLDEN / "g16_optim.json").read_text())["optimizers"]
SETTINGS.pop("muon")
ABOUT_THE_MACHINE = {"capturable", "differentiable"}
SHARED = {"step", "mu_product", "mu"}
"""What torch keeps beside a parameter's tensors; here a function of the step."""


def optimizer(kind, **options):
    return TypeAdapter(AnyOptimizer).validate_python({"kind": kind, **options})


def chosen_for(name):
    setting = SETTINGS[name]
    return optimizer(setting["cls"].lower(), **setting["kwargs"])


@pytest.fixture(scope="module")
def recorded():
    with np.load(GOLDEN / "g16_optim.npz") as archive:
        return dict(archive)


@for_each("name", SETTINGS)
def test_weights_and_state_follow_torch(name, recorded):
    chosen = chosen_for(name)
    for letter in "Wb":
        weights = recorded[f"{letter}0"].copy()
        state = chosen.new_state(weights)
        for step, gradient in enumerate(recorded[f"{name}_g{letter}"]):
            kept = gradient.copy()
            chosen.step(weights, gradient, state, chosen.lr, step + 1)
            wanted = recorded[f"{name}_{letter}"][step]
            np.testing.assert_allclose(weights, wanted, rtol=1e-12, atol=1e-12)
            np.testing.assert_array_equal(gradient, kept)
        lead = f"{name}_state{letter}_"
        theirs = {key.removeprefix(lead) for key in recorded if key.startswith(lead)}
        assert set(state) == theirs - SHARED
        for tensor in state:
            wanted = recorded[f"{name}_state{letter}_{tensor}"]
            np.testing.assert_allclose(state[tensor], wanted, rtol=1e-12, atol=1e-12)
            assert state[tensor].shape == wanted.shape


@for_each("name", SETTINGS)
def test_arguments_and_defaults_are_torchs(name):
    chosen = chosen_for(name)
    ours = chosen.model_dump(mode="json", exclude={"kind", "param_groups"})
    theirs = {k: v for k, v in SETTINGS[name]["defaults"].items() if k not in ABOUT_THE_MACHINE}
    theirs.pop("decoupled_weight_decay" if SETTINGS[name]["cls"] == "AdamW" else "", None)
    assert ours == theirs


# Of norms ----------------------------------------------------------------------------------------


def norm(array):
    return np.sqrt((array * array).sum())


@for_each("decay", [0.1, 0.0])
def test_lamb_is_adamws_update_scaled_to_the_norm_of_the_tensor(decay):
    """After one step both averages are those of the gradient alone, and u = sign(g) + decay p."""
    random = np.random.default_rng(0)
    weights, gradient = random.standard_normal((2, 4, 3))
    chosen = optimizer("lamb", lr=0.01, eps=0.0, weight_decay=decay)
    update = np.sign(gradient) + decay * weights
    ratio = norm(weights) / norm(update) if decay else 1.0
    wanted = weights - 0.01 * ratio * update
    chosen.step(weights, gradient, chosen.new_state(weights), 0.01, 1)
    np.testing.assert_allclose(weights, wanted, rtol=1e-12)


def test_lamb_may_adapt_without_decay_and_without_correction():
    weights, gradient = np.array([3.0, 4.0]), np.array([1.0, -1.0])
    chosen = optimizer("lamb", eps=0.0, weight_decay=0.0, always_adapt=True, bias_correction=False)
    chosen.step(weights, gradient, chosen.new_state(weights), 0.1, 1)
    np.testing.assert_allclose(weights, np.array([3.0, 4.0]) - 0.5 / np.sqrt(2) * gradient)


@for_each("nesterov", [False, True])
def test_lars_is_sgd_with_a_rate_of_the_tensors_own(nesterov):
    random = np.random.default_rng(1)
    weights, first, second = random.standard_normal((3, 5))
    chosen = optimizer("lars", momentum=0.8, weight_decay=0.1, eps=0.0, nesterov=nesterov)
    state, wanted, buffer = chosen.new_state(weights), weights.copy(), np.zeros(5)
    for t, gradient in enumerate((first, second), 1):
        rate = 1e-3 * norm(wanted) / (norm(gradient) + 0.1 * norm(wanted))
        change = rate * (gradient + 0.1 * wanted)
        buffer = 0.8 * buffer + change
        wanted = wanted - 2.0 * (change + 0.8 * buffer if nesterov else buffer)
        chosen.step(weights, gradient, state, 2.0, t)
    np.testing.assert_allclose(weights, wanted, rtol=1e-12)


def test_lars_without_decay_is_sgd():
    weights, gradient = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    plain, momentum = optimizer("sgd", momentum=0.9), optimizer("lars", momentum=0.9)
    other = weights.copy()
    for chosen, own in ((plain, weights), (momentum, other)):
        chosen.step(own, gradient, chosen.new_state(own), 0.1, 1)
    np.testing.assert_allclose(weights, other, rtol=1e-15)


@for_each("kind", ["lamb", "lars"])
def test_a_tensor_of_zeros_has_no_ratio(kind):
    chosen = optimizer(kind, weight_decay=0.1)
    assert chosen.ratio_of(0.0, 2.0) == chosen.ratio_of(2.0, 0.0) == 1.0
    assert chosen.ratio_of(4.0, 1.0) != 1.0


def test_averaging_begins_when_it_is_told():
    chosen, weights = optimizer("asgd", lambd=0.0, t0=1.0), np.array([4.0])
    state, seen = chosen.new_state(weights), []
    for t in range(1, 6):
        chosen.step(weights, np.array([1.0]), state, 1.0, t)
        seen.append(float(state["ax"][0]))
    assert seen == [3.0, 2.0, 1.0, 0.5, 0.0]  # the means of 1, 0 and of 1, 0, -1


def test_asgd_takes_the_rate_of_the_step_before():
    # torch 2.14: ASGD([4.0], lr, lambd=.01, alpha=.75) with gradient 1 and rates that change.
    rates = [0.5, 0.25, 1.0, 0.1, 0.1]
    wanted = [3.48, 2.9645318001307945, 2.7080815592272915, 1.7035196682340359, 1.6021201951388078]
    chosen, weights = optimizer("asgd", lambd=0.01), np.array([4.0])
    state, seen = chosen.new_state(weights), []
    for t, rate in enumerate(rates, 1):
        chosen.step(weights, np.array([1.0]), state, rate, t)
        seen.append(float(weights[0]))
    assert seen == pytest.approx(wanted, rel=1e-12)


@for_each(
    ("kind", "shape", "elements"),
    [
        ("adafactor", (5, 3), [5, 3]),
        ("adafactor", (2, 5, 3), [10, 6]),
        ("adafactor", (7,), [7]),
        ("adafactor", (), [1]),
        ("adam", (5, 3), [15, 15]),
        ("asgd", (5, 3), [15]),
    ],
)
def test_state_has_as_many_elements_as_torchs(kind, shape, elements):
    chosen = optimizer(kind)
    assert chosen.state_elements(shape) == elements
    kept = [tensor.size for tensor in chosen.new_state(np.zeros(shape)).values()]
    assert kept[: len(elements)] == elements
    assert kept[len(elements) :] == ([1] if kind == "asgd" else [])  # torch's eta


@for_each(
    ("kind", "passes"), [("lamb", 12), ("lars", 7), ("adafactor", 17), ("rprop", 7), ("asgd", 5)]
)
def test_bytes_are_those_of_its_passes_over_the_elements(kind, passes):
    assert optimizer(kind).nbytes_moved(10, 4) == passes * 40


def test_step_sizes_fall_never():
    with pytest.raises(ValidationError) as caught:
        optimizer("rprop", step_sizes=[1.0, 0.1])
    (found,) = problems(caught.value, {})
    assert found.line == "step_sizes 1, 0.1 fall; give the smaller one first."


def test_what_needs_whole_tensors_says_so():
    whole = {kind for kind in OPTIMIZERS if OPTIMIZERS[kind].whole_tensors}
    assert {"adafactor", "lamb", "lars"} <= whole
    assert {kind for kind in whole if OPTIMIZERS[kind].trusts} == {"lamb", "lars"}


# Kernels -----------------------------------------------------------------------------------------


@for_each(
    ("kind", "options", "one_pass", "passes"),
    [
        ("adamw", {"weight_decay": 0.0}, 7, 18),
        ("adamw", {}, 7, 20),
        ("adam", {"amsgrad": True, "weight_decay": 0.1, "maximize": True}, 9, 26),
        ("sgd", {}, 3, 3),
        ("sgd", {"momentum": 0.9, "nesterov": True}, 5, 11),
        ("sgd", {"momentum": 0.9, "weight_decay": 0.1}, 5, 11),
        ("adagrad", {}, 5, 11),
    ],
)
def test_a_fused_kernel_reads_and_writes_each_tensor_once(kind, options, one_pass, passes):
    made = {fused: optimizer(kind, fused=fused, **options) for fused in (None, True, False)}
    moved = {fused: chosen.nbytes_moved(10, 4) / 40 for fused, chosen in made.items()}
    assert moved == {None: one_pass, True: one_pass, False: passes}
    assert made[True].num_temporaries() == 0
    assert made[False].num_temporaries() == made[None].num_temporaries()


def test_a_fused_kernel_is_one_for_all_tensors():
    assert optimizer("adam", fused=True, foreach=False).launches_per_tensor() == 0
    assert optimizer("adam", fused=False, foreach=False).launches_per_tensor() == 7


def test_adamw_in_one_kernel_moves_28_bytes_of_each_element():
    assert optimizer("adamw", fused=True).nbytes_moved(1, 4) == 28


def test_fused_and_foreach_exclude_each_other():
    with pytest.raises(ValidationError) as caught:
        optimizer("adam", fused=True, foreach=True)
    (found,) = problems(caught.value, {})
    assert found.line == "fused and foreach are both true; keep one of them."
