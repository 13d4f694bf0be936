"""Every data set: shaped for the model and the loss, and the same for the same seed."""

import numpy as np
import pytest
from for_each import for_each
from pydantic import TypeAdapter
from reader import Reader, settled

from simdp.workload import Workload
from simdp.workload.datasets import DATASETS, AnyDataset
from simdp.workload.losses.classification import CrossEntropy
from simdp.workload.losses.regression import MSE
from simdp.workload.models.operators import EinsumModel
from simdp.workload.models.sequential import MLP, Sequential

LOSSES = {"cross_entropy": CrossEntropy(), "mse": MSE()}
PERCEPTRON = MLP(widths=[4, 3])
GRIDS = EinsumModel(equation="bsd,df->bsf", s=2, d=4, f=3)
CAMERA = Sequential.model_validate(
    {"layers": ["relu"], "input_shape": [3, 7, 9]}  # (3, 7, 9) in and out: 9 classes
)
READERS = [Reader(task=task) for task in ("language_model", "classifier", "seq2seq")]
CASES = [
    pytest.param(kind, model, id=f"{kind}-{model.kind}-{getattr(model, 'task', '')}")
    for kind, models in {
        "blobs": [PERCEPTRON, GRIDS],
        "csv": [PERCEPTRON, MLP(widths=[4, 1])],
        "digits": READERS[2:],
        "npz": [PERCEPTRON, GRIDS, *READERS],
        "regression": [PERCEPTRON, GRIDS, CAMERA],
        "tokens": READERS,
    }.items()
    for model in models
]

every_case = pytest.mark.parametrize(("kind", "model"), CASES)


@pytest.fixture
def dataset(tmp_path):
    def dataset(kind, model):
        options = {"num_samples": 10}
        if kind == "csv":
            options = {"path": "data.csv", "label": "y"}
            y = "0.5" if model.output_shape() == (1,) else "2"
            (tmp_path / "data.csv").write_text("a,b,c,d,y\n" + f"1,2.5,-3,4e-1,{y}\n" * 10)
        if kind == "npz":
            options = {"path": "data.npz"}
            model = model.with_input_shapes({"x": (5,), "tgt": (6,)})
            wanted = dict(zip(model.graph.inputs, model.known_shapes(), strict=True))
            wanted["y"] = model.output_shape()
            words = isinstance(model, Reader)
            if words:
                wanted["y"] = wanted["y"][:-1]
            arrays = {name: np.ones((10, *shape)) for name, shape in wanted.items()}
            arrays = {n: a.astype(np.uint8 if words else np.float32) for n, a in arrays.items()}
            np.savez(tmp_path / "data.npz", **arrays)
        return TypeAdapter(AnyDataset).validate_python({"kind": kind, **options})

    return dataset


def loss_of(kind, model):
    words = isinstance(model, Reader)
    classes = words or (kind == "csv" and model.output_shape() != (1,))
    return LOSSES["cross_entropy" if classes else DATASETS[kind].usual_loss]


def test_every_kind_of_data_set_has_a_case_here():
    assert {case.values[0] for case in CASES} | {"images", "none"} == set(DATASETS)


@every_case
def test_samples_suit_the_model_and_the_loss(kind, model, dataset, tmp_path):
    chosen, loss = dataset(kind, model), loss_of(kind, model)
    model = settled(chosen, model, tmp_path)
    assert chosen.problem_with(model, loss, tmp_path) is None
    arrays = chosen.arrays(model, loss, 0, tmp_path)
    assert set(arrays) == {*model.graph.inputs, "y"}
    for name, shape in zip(model.graph.inputs, model.known_shapes(), strict=True):
        array, known = arrays[name], model.num_tokens(name)
        assert array.shape == (10, *shape)
        assert array.dtype.kind == "f" if known is None else array.dtype == np.int64
        assert known is None or (array.min() >= 0 and array.max() < known)
    assert len(arrays["y"]) == chosen.length(tmp_path) == 10
    assert loss.problem_with(arrays["y"], model.output_shape()) is None


@every_case
def test_the_same_seed_gives_the_same_data(kind, model, dataset, tmp_path):
    chosen, loss = dataset(kind, model), loss_of(kind, model)
    model = settled(chosen, model, tmp_path)
    first, second = (chosen.arrays(model, loss, 7, tmp_path) for _ in range(2))
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])
    first, second = (chosen.lengths_of(model, loss, 7, tmp_path) for _ in range(2))
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])


@for_each(("kind", "model"), [c for c in CASES if c.values[0] not in ("csv", "npz")])
def test_another_seed_gives_other_data(kind, model, dataset, tmp_path):
    chosen, loss = dataset(kind, model), loss_of(kind, model)
    model = settled(chosen, model, tmp_path)
    first, second = (chosen.arrays(model, loss, seed, tmp_path)["x"] for seed in (0, 1))
    assert not np.array_equal(first, second)


@for_each("kind", ["blobs", "digits", "images", "regression", "tokens"])
def test_synthetic_data_have_1024_samples_unless_told_otherwise(kind, tmp_path):
    assert DATASETS[kind]().length(tmp_path) == 1024


@for_each("kind", ["blobs", "regression"])
def test_real_numbers_know_no_padding(kind, tmp_path):
    assert DATASETS[kind]().lengths_of(PERCEPTRON, MSE(), 0, tmp_path) == {}


@for_each(
    ("kind", "loss"),
    [
        ("blobs", "cross_entropy"),
        ("digits", "cross_entropy"),
        ("images", "cross_entropy"),
        ("npz", "mse"),
        ("regression", "mse"),
        ("tokens", "cross_entropy"),
    ],
)
def test_a_workload_without_a_loss_takes_the_one_that_suits_its_data(kind, loss):
    dataset = {"kind": kind, "path": "data.npz"} if kind == "npz" else {"kind": kind}
    raw = {"model": {"kind": "mlp", "widths": [4, 3]}, "dataset": dataset, "microbatch": 1}
    assert Workload.model_validate(raw).loss == LOSSES[loss]


# What does not suit a model ----------------------------------------------------------------------


@for_each("kind", ["blobs", "images", "regression"])
def test_real_numbers_do_not_suit_a_model_of_tokens(kind, tmp_path):
    wrong = DATASETS[kind]().problem_with(Reader(length=4), CrossEntropy(), tmp_path)
    assert wrong == f"{kind} draws real numbers, but the model takes tokens as x; use tokens."


@for_each("kind", ["digits", "tokens"])
def test_tokens_do_not_suit_a_model_of_real_numbers(kind, tmp_path):
    chosen = DATASETS[kind]()
    assert chosen.input_shapes(PERCEPTRON, tmp_path) == {}
    wrong = chosen.problem_with(PERCEPTRON, CrossEntropy(), tmp_path)
    assert wrong == f"{kind} draws tokens, but the model takes real numbers as x; use npz."


# Each kind ---------------------------------------------------------------------------------------


def test_blobs_lie_around_a_centre_per_class(tmp_path):
    arrays = DATASETS["blobs"](num_samples=3000).arrays(PERCEPTRON, CrossEntropy(), 0, tmp_path)
    for label in range(3):
        cloud = arrays["x"][arrays["y"] == label]
        assert len(cloud) > 800
        np.testing.assert_allclose(cloud.std(axis=0), 1, atol=0.1)


def test_regression_targets_are_nearly_linear(tmp_path):
    arrays = DATASETS["regression"](num_samples=1000).arrays(PERCEPTRON, MSE(), 0, tmp_path)
    _, residuals, _, _ = np.linalg.lstsq(arrays["x"], arrays["y"])
    np.testing.assert_allclose(np.sqrt(residuals / 1000), 0.1, atol=0.01)
