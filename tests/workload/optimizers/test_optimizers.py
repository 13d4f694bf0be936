"""Every optimizer against torch's trajectories, and as the update of any tensor in place."""

import json
from pathlib import Path

import numpy as np
import pytest
from draws import draws
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

import simdp
from simdp.scenario import checked
from simdp.spec import problems
from simdp.workload.optimizers import OPTIMIZERS, AnyOptimizer, base
from simdp.workload.optimizers.adam import mu_product, rectification
from simdp.workload.optimizers.base import launches_over_lists
from simdp.workload.step_costs import optimizer_list_launches, optimizer_nbytes_moved

BLOCK = base.BLOCK
GOLDEN = Path(__file__).parents[2] / "golden"
SETTINGS = json.loads((GOLDEN / "g05_optim.json").read_text())["optimizers"]

every_optimizer = for_each("kind", OPTIMIZERS)
elementwise = for_each("kind", [kind for kind in OPTIMIZERS if not OPTIMIZERS[kind].whole_tensors])


def optimizer(kind, **options):
    return TypeAdapter(AnyOptimizer).validate_python({"kind": kind, **options})


@pytest.fixture(scope="module")
def recorded():
    with np.load(GOLDEN / "g05_optim.npz") as archive:
        return dict(archive)


# torch -------------------------------------------------------------------------------------------


@for_each("name", SETTINGS)
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
            for tensor in set(setting["final_state_keys"]) - NOT_ARRAYS:
                wanted = recorded[f"{name}_state_{tensor}"]
                np.testing.assert_allclose(state[tensor], wanted, rtol=1e-12, atol=1e-12)


NOT_ARRAYS = {"step", "mu_product"}
"""What torch keeps beside a parameter's tensors; here a function of the step."""


@for_each("name", SETTINGS)
def test_state_has_torchs_names(name):
    setting = SETTINGS[name]
    chosen = optimizer(setting["cls"].lower(), **setting["kwargs"])
    assert sorted(chosen.state_names()) == sorted(set(setting["final_state_keys"]) - NOT_ARRAYS)


ABOUT_THE_MACHINE = {"capturable", "differentiable"}
"""Arguments of torch that change how it computes, not what."""


@for_each("name", SETTINGS)
def test_arguments_and_defaults_are_torchs(name):
    setting = SETTINGS[name]
    chosen = optimizer(setting["cls"].lower(), **setting["kwargs"])
    ours = chosen.model_dump(mode="json", exclude={"kind", "param_groups"})
    theirs = {k: v for k, v in setting["defaults"].items() if k not in ABOUT_THE_MACHINE}
    if setting["cls"] in ("Adam", "AdamW"):  # the two kinds are the two values of this argument
        assert theirs.pop("decoupled_weight_decay") == (setting["cls"] == "AdamW")
    assert ours == theirs


# From torch 2.13.0: inspect.signature(torch.optim.SGD) and its like; LAMB's from apex, LARS's timm.
LEARNING_RATES = {
    "adadelta": 1.0,
    "adafactor": 0.01,
    "adagrad": 0.01,
    "adam": 0.001,
    "adamax": 0.002,
    "adamw": 0.001,
    "asgd": 0.01,
    "lamb": 0.001,
    "lars": 1.0,
    "muon": 0.001,
    "nadam": 0.002,
    "none": 0,
    "radam": 0.001,
    "rmsprop": 0.01,
    "rprop": 0.01,
    "sgd": 0.001,
}


@every_optimizer
def test_the_default_learning_rate_is_torchs(kind):
    assert optimizer(kind).lr == LEARNING_RATES[kind]


# Computed by torch 2.13.0 (CPU, float64, foreach=False): the weights after these gradients.
START = [0.5, -1.0, 2.0]
GRADIENTS = [
    [0.3, -0.1, 0.2],
    [-0.2, 0.4, 0.1],
    [0.5, 0.2, -0.3],
    [0.1, -0.6, 0.4],
    [-0.4, 0.3, 0.2],
    [0.2, 0.1, -0.5],
    [0.6, -0.2, 0.3],
    [-0.1, 0.5, 0.1],
]
FINAL = [
    (
        "adadelta",
        {"rho": 0.8, "eps": 0.0001, "weight_decay": 0.1, "maximize": True},
        [0.5391537604733417, -0.9285089664347057, 1.9314796627105806],
    ),
    (
        "adagrad",
        {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5},
        [0.3951585582028774, -0.9838649385407207, 1.8429048676538904],
    ),
    (
        "adagrad",
        {"lr": 0.1, "eps": 0.01, "maximize": True},
        [0.6616926957653954, -0.9563074611487687, 2.1489773672945782],
    ),
    (
        "adam",
        {"lr": 0.1, "weight_decay": 0.1, "amsgrad": True, "maximize": True},
        [0.7243140735698758, -0.6886465613849991, 1.6587538191297932],
    ),
    ("adamax", {"lr": 0.1}, [0.24005296190418984, -1.0064446121032193, 1.7531079601158173]),
    (
        "adamax",
        {"lr": 0.1, "betas": [0.8, 0.9], "eps": 0.001, "weight_decay": 0.1, "maximize": True},
        [0.678398646800492, -0.762873477025804, 1.78653015162157],
    ),
    (
        "adamw",
        {"lr": 0.1, "amsgrad": True, "maximize": True},
        [0.839834203928999, -0.9310402718478081, 2.2894461226966873],
    ),
    (
        "nadam",
        {"lr": 0.1, "weight_decay": 0.1},
        [0.21316328063623846, -0.9425748272089355, 1.580759530346847],
    ),
    (
        "nadam",
        {
            "lr": 0.1,
            "momentum_decay": 0.1,
            "weight_decay": 0.1,
            "decoupled_weight_decay": True,
            "maximize": True,
        },
        [0.6925317901788786, -0.8485883057455768, 2.042176054264373],
    ),
    ("radam", {"lr": 0.1}, [0.4208302459473399, -1.0240965887683802, 1.942641990769924]),
    (
        "radam",
        {"lr": 0.1, "weight_decay": 0.1},
        [0.3962341611227628, -0.9717084595975656, 1.8400440999204308],
    ),
    (
        "radam",
        {
            "lr": 0.1,
            "betas": [0.8, 0.99],
            "weight_decay": 0.1,
            "decoupled_weight_decay": True,
            "maximize": True,
        },
        [0.5411934635259489, -0.8972262053308037, 1.9013591990294318],
    ),
    (
        "radam",
        {"lr": 0.1, "betas": [0.8, 0.5]},
        [0.3896697092753122, -1.036821107907205, 1.9370132139961924],
    ),
    (
        "rmsprop",
        {"lr": 0.1, "centered": True},
        [-1.1697533582891015, -1.3852955396401097, 0.428885267415705],
    ),
    (
        "rmsprop",
        {
            "lr": 0.1,
            "alpha": 0.9,
            "momentum": 0.8,
            "centered": True,
            "weight_decay": 0.1,
            "maximize": True,
        },
        [1.447237078766883, 0.6158765108272657, -0.08815070820020418],
    ),
    (
        "sgd",
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1, "maximize": True},
        [0.6913179410257174, -0.6728340744774141, 1.7030241518253015],
    ),
]


@for_each(("kind", "options", "final"), FINAL)
def test_what_the_golden_file_leaves_out_follows_torch(kind, options, final):
    chosen, weights = optimizer(kind, **options), np.array(START)
    state = chosen.new_state(weights)
    for t, gradient in enumerate(GRADIENTS, 1):
        chosen.step(weights, np.array(gradient), state, chosen.lr, t)
    np.testing.assert_allclose(weights, final, rtol=1e-12)


def test_nadams_product_of_momenta_follows_torch(recorded):
    """Of NAdam's state this is the one number that every parameter shares."""
    wanted = float(recorded["nadam_state_mu_product"])
    assert mu_product(0.9, 4e-3, 10) == pytest.approx(wanted, rel=1e-12)


def test_nadams_product_of_momenta_is_cheap_at_a_late_step():
    assert mu_product(0.9, 4e-3, 10**12) < 1e-19


def test_radam_rectifies_as_soon_as_its_average_is_long_enough():
    """The paper's table for b2 = 0.999: the first five steps are plain momentum."""
    assert [rectification(0.999, t) is None for t in range(1, 8)] == [True] * 5 + [False] * 2
    assert rectification(0.999, 10**5) == pytest.approx(1, abs=1e-6)
    assert all(rectification(0.5, t) is None for t in range(1, 100))


# Every optimizer ---------------------------------------------------------------------------------


@elementwise
@for_each("dtype", [np.float32, np.float64])
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


OPTIONS = {
    "adagrad": {"initial_accumulator_value": 0.5, "lr_decay": 0.1},
    "adam": {"amsgrad": True},
    "adamw": {"amsgrad": True},
    "nadam": {"decoupled_weight_decay": True},
    "radam": {"betas": [0.8, 0.9], "decoupled_weight_decay": True},
    "rmsprop": {"momentum": 0.9, "centered": True},
    "sgd": {"momentum": 0.9, "nesterov": True},
}
"""Options with which an optimizer keeps all the state that it can."""


@pytest.mark.slow
@elementwise
@draws(6, 12)
@given(size=st.integers(0, 40), block=st.integers(1, 50), seed=st.integers(0, 2**32))
def test_the_size_of_a_block_changes_no_bit(kind, size, block, seed):
    decay = {"weight_decay": 0.1, "maximize": True}
    decay = {key: value for key, value in decay.items() if key in OPTIMIZERS[kind].model_fields}
    chosen = optimizer(kind, **OPTIONS.get(kind, {}), **decay)
    random = np.random.default_rng(seed)
    weights, *gradients = random.standard_normal((4, size))
    expected, state, wanted = weights.copy(), chosen.new_state(weights), chosen.new_state(weights)
    for t, gradient in enumerate(gradients, 1):
        chosen.step(expected, gradient, wanted, 0.1, t)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(base, "BLOCK", block)
            chosen.step(weights, gradient, state, 0.1, t)
    np.testing.assert_array_equal(weights, expected)
    for name, tensor in state.items():
        np.testing.assert_array_equal(tensor, wanted[name])


@elementwise
@for_each("rich", [False, True])
def test_state_begins_at_zero_and_is_shaped_like_the_parameter(kind, rich):
    parameter = np.ones((2, 3), np.float32)
    for name, tensor in (
        optimizer(kind, **OPTIONS.get(kind, {}) if rich else {}).new_state(parameter).items()
    ):
        assert tensor.shape == (() if name == "eta" else (2, 3))
        assert tensor.dtype == np.float32
        rate = np.float32(0.01)
        start = {"sum": 0.5 * rich, "step_size": rate, "eta": rate}.get(name, 0)
        assert (tensor == start).all()


@elementwise
def test_bytes_moved_are_gradient_in_and_the_rest_in_and_out(kind):
    chosen = optimizer(kind)
    tensors = 0 if kind == "none" else 3 + 2 * len(chosen.state_names())
    assert chosen.nbytes_moved(10, 4) == tensors * 40


@for_each(
    ("options", "tensors"),
    [
        ({}, 3),  # p -= lr g
        ({"weight_decay": 0.1}, 3 + 3),  # g + weight_decay p first
        ({"maximize": True}, 3 + 2),  # -g first
        ({"weight_decay": 0.1, "maximize": True}, 3 + 3 + 2),
        ({"momentum": 0.9}, 2 + 3 + 3),  # b *= momentum; b += g; p -= lr b
        ({"momentum": 0.9, "nesterov": True}, 2 + 3 + 3 + 3),  # g + momentum b
    ],
)
def test_kernel_by_kernel_sgd_moves_what_each_reads_and_writes(options, tensors):
    assert optimizer("sgd", fused=False, **options).nbytes_moved(10, 4) == tensors * 40


@for_each(
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


@for_each(
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
            "unknown key 'learning_rate'. Did you mean lr? Known: lr, foreach, param_groups, "
            "fused, momentum, dampening, weight_decay, nesterov, maximize.",
        ),
        (
            {"kind": "adam", "momentum": 0.9},
            "unknown key 'momentum'; known: lr, foreach, param_groups, fused, betas, eps, "
            "weight_decay, amsgrad, maximize.",
        ),
        (
            {"kind": "sdg"},
            f"unknown optimizer 'sdg'. Did you mean 'sgd'? Known: "
            f"{', '.join(sorted(OPTIMIZERS)[:10])}, ... and 6 more: simdp list optimizers.",
        ),
        (
            {"kind": "rmsprop", "alpha": 1.1},
            "alpha: 1.1 is out of range; it must be <= 1.0.",
        ),
        ({"kind": "adadelta", "rho": -1}, "rho: -1 is out of range; it must be >= 0.0."),
        ({"kind": "adagrad", "lr_decay": -1}, "lr_decay: -1 is out of range; it must be >= 0.0."),
        (
            {"kind": "adagrad", "initial_accumulator_value": -1},
            "initial_accumulator_value: -1 is out of range; it must be >= 0.0.",
        ),
        (
            {"kind": "nadam", "momentum_decay": -1},
            "momentum_decay: -1 is out of range; it must be >= 0.0.",
        ),
        (
            {"kind": "radam", "decoupled_weight_decay": 1},
            "decoupled_weight_decay: 1 is not true or false.",
        ),
        (
            {"kind": "adamax", "beta": 0.9},
            "unknown key 'beta'. Did you mean 'betas'? Known: lr, foreach, param_groups, betas, "
            "eps, weight_decay, maximize.",
        ),
    ],
)
def test_a_wrong_optimizer_is_refused(raw, line):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(AnyOptimizer).validate_python(raw)
    assert [found.line for found in problems(caught.value, raw)] == [line]


@for_each("kind", OPTIMIZERS)
@for_each("foreach", [None, True])
def test_tensors_that_are_updated_at_once_cost_no_launches(kind, foreach):
    assert optimizer(kind, foreach=foreach).launches_per_tensor() == 0


@for_each(
    ("kind", "options", "kernels"),
    [
        ("sgd", {}, 1),
        ("sgd", {"momentum": 0.9, "weight_decay": 1e-4}, 4),
        ("sgd", {"momentum": 0.9, "nesterov": True}, 4),
        ("adam", {}, 7),
        ("adam", {"amsgrad": True, "weight_decay": 0.1, "maximize": True}, 10),
        ("adamw", {"weight_decay": 0.0}, 7),
        ("rmsprop", {"momentum": 0.9, "weight_decay": 1e-5}, 8),
        ("rmsprop", {"centered": True}, 7),
        ("adagrad", {}, 4),
        ("adadelta", {}, 11),
        ("adamax", {}, 6),
        ("nadam", {}, 8),
        ("radam", {}, 9),
        ("asgd", {"weight_decay": 0.1}, 4),
        ("rprop", {}, 16),
        ("adafactor", {}, 18),
        ("lamb", {}, 11),
        ("lars", {}, 7),
        ("muon", {}, 23),
        ("none", {}, 0),
    ],
)
def test_a_loop_over_tensors_launches_kernels_for_each(kind, options, kernels):
    assert optimizer(kind, foreach=False, **options).launches_per_tensor() == kernels


def launches_of_torch(sizes, depth):
    """The loop of torch's MultiTensorApply.cuh, chunk by chunk."""
    most, found, blocks, tensors = (110, 64, 48, 36, 30)[depth - 1], 0, 0, 0
    for number, size in enumerate(sizes):
        tensors += 1
        chunks = -(-size // 65536)
        for chunk in range(chunks):
            blocks += 1
            is_last = chunk == chunks - 1
            full = (tensors == most and is_last) or blocks == 320
            if full or (is_last and number == len(sizes) - 1):
                found, blocks, tensors = found + 1, 0, int(not is_last)
    return found


def test_kernels_over_lists_are_launched_as_often_as_torch_does():
    rng = np.random.default_rng(0)
    for depth in (1, 2, 3, 4, 5):
        for most in (100, 10**6, 10**8):
            sizes = rng.integers(1, most, 150).tolist()
            assert launches_over_lists(sizes, depth) == launches_of_torch(sizes, depth)
    assert launches_over_lists([0, 0], 2) == 0
    assert launches_over_lists([1] * 110, 1) == 1
    assert launches_over_lists([1] * 111, 1) == 2
    assert launches_over_lists([320 * 65536 + 1], 4) == 2


@for_each(
    ("options", "launches"),
    [
        ({}, 8),  # with the decay
        ({"foreach": True, "weight_decay": 0.0}, 7),
        ({"fused": True}, 1),
        ({"foreach": False}, 0),
    ],
)
def test_an_update_of_few_numbers_takes_as_long_as_its_launches(options, launches):
    chosen = {"kind": "adamw", **options}
    cluster = {"world_size": 1, "device": "a100-sxm4-80gb"}
    workload = {"model": {"kind": "mlp", "widths": [8, 8]}, "microbatch": 4, "optimizer": chosen}
    scenario = checked({"cluster": cluster, "workload": workload, "numerics": False}, Path())
    assert optimizer_list_launches(scenario.workload) == launches
    update = simdp.simulate(scenario).metrics["update_s"]
    if launches:
        assert update == pytest.approx(launches * 5e-6)
    else:  # a loop over two tensors
        assert update == pytest.approx(2 * 8 * 5e-6, rel=0.01)


@for_each("foreach", [False, True])
def test_an_update_in_a_cuda_graph_takes_no_launches(foreach):
    cluster = {"world_size": 1, "device": "a100-sxm4-80gb"}
    workload = {"model": {"kind": "mlp", "widths": [8, 8]}, "microbatch": 4, "cuda_graphs": True}
    workload["optimizer"] = {"kind": "adamw", "foreach": foreach}
    scenario = checked({"cluster": cluster, "workload": workload, "numerics": False}, Path())
    assert simdp.simulate(scenario).metrics["update_s"] < 0.1 * 5e-6


def test_an_update_of_many_numbers_takes_as_long_as_its_bytes():
    cluster = {"world_size": 1, "device": "a100-sxm4-80gb"}
    workload = {"model": "gpt2", "microbatch": 1, "optimizer": "adamw"}
    scenario = checked({"cluster": cluster, "workload": workload, "numerics": False}, Path())
    nbytes = optimizer_nbytes_moved(scenario.workload)
    assert simdp.simulate(scenario).metrics["update_s"] == pytest.approx(nbytes / (0.85 * 2039e9))
