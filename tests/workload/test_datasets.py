"""Every data set: shaped for the model and the loss, and the same for the same seed."""

import numpy as np
import pytest
from pydantic import TypeAdapter

from simdp.workload.datasets import DATASETS, AnyDataset
from simdp.workload.losses.cross_entropy import CrossEntropy
from simdp.workload.losses.mse import MSE
from simdp.workload.models.einsum import EinsumModel
from simdp.workload.models.mlp import MLP

SUITS = {"regression": MSE(), "blobs": CrossEntropy(), "npz": MSE()}
MODELS = {
    "mlp": MLP(widths=[4, 3]),
    "einsum": EinsumModel(equation="bsd,df->bsf", s=2, d=4, f=3),
}

every_dataset = pytest.mark.parametrize("kind", DATASETS)
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


@pytest.fixture
def dataset(tmp_path):
    def dataset(kind, model, **options):
        if kind == "npz":
            x = np.arange(10.0 * np.prod(model.input_shape()))
            y = np.arange(10.0 * np.prod(model.output_shape()))
            np.savez(
                tmp_path / "data.npz",
                x=x.reshape(10, *model.input_shape()),
                y=y.reshape(10, *model.output_shape()),
            )
            options = {"path": "data.npz"}
        else:
            options = {"num_samples": 10, **options}
        return TypeAdapter(AnyDataset).validate_python({"kind": kind, **options})

    return dataset


def test_every_kind_of_data_set_suits_a_loss_here():
    assert set(SUITS) == set(DATASETS)


@every_dataset
@every_model
def test_samples_suit_the_model_and_the_loss(kind, model, dataset, tmp_path):
    chosen = dataset(kind, model)
    arrays = chosen.arrays(model, 0, tmp_path)
    assert set(arrays) == {"x", "y"}
    assert arrays["x"].shape == (10, *model.input_shape())
    assert arrays["x"].dtype == np.float64
    assert len(arrays["y"]) == chosen.length(tmp_path) == 10
    assert SUITS[kind].problem_with(arrays["y"], model.output_shape()) is None


@every_dataset
@every_model
def test_the_same_seed_gives_the_same_data(kind, model, dataset, tmp_path):
    chosen = dataset(kind, model)
    first, second = (chosen.arrays(model, 7, tmp_path) for _ in range(2))
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])


@pytest.mark.parametrize("kind", ["regression", "blobs"])
@every_model
def test_another_seed_gives_other_data(kind, model, dataset, tmp_path):
    chosen = dataset(kind, model)
    first, second = (chosen.arrays(model, seed, tmp_path)["x"] for seed in (0, 1))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("kind", ["regression", "blobs"])
def test_synthetic_data_have_1024_samples_unless_told_otherwise(kind, tmp_path):
    assert DATASETS[kind]().length(tmp_path) == 1024


def test_a_file_is_read_in_its_order_and_as_floats_and_whole_numbers(tmp_path):
    x, y = np.arange(8, dtype=np.float32).reshape(2, 4), np.array([2, 0], np.uint8)
    np.savez(tmp_path / "data.npz", x=x, y=y, more=np.zeros(3))
    chosen = TypeAdapter(AnyDataset).validate_python({"kind": "npz", "path": "data.npz"})
    arrays = chosen.arrays(MODELS["mlp"], 0, tmp_path)
    np.testing.assert_array_equal(arrays["x"], x)
    assert arrays["x"].dtype == np.float64
    assert arrays["y"].tolist() == [2, 0]
    assert arrays["y"].dtype == np.int64


def test_blobs_lie_around_a_centre_per_class(tmp_path):
    model = MLP(widths=[4, 3])
    arrays = DATASETS["blobs"](num_samples=3000).arrays(model, 0, tmp_path)
    for label in range(3):
        cloud = arrays["x"][arrays["y"] == label]
        assert len(cloud) > 800
        np.testing.assert_allclose(cloud.std(axis=0), 1, atol=0.1)


def test_regression_targets_are_nearly_linear(tmp_path):
    arrays = DATASETS["regression"](num_samples=1000).arrays(MODELS["mlp"], 0, tmp_path)
    _, residuals, _, _ = np.linalg.lstsq(arrays["x"], arrays["y"])
    np.testing.assert_allclose(np.sqrt(residuals / 1000), 0.1, atol=0.01)
