"""Images: random, of the model's size, with classes that can be learned."""

import numpy as np
import pytest
from for_each import for_each

from simdp.workload.datasets.synthetic import Images
from simdp.workload.losses.classification import CrossEntropy
from simdp.workload.losses.regression import MSE
from simdp.workload.models.operators import EinsumModel
from simdp.workload.models.sequential import MLP

CAMERA = EinsumModel(equation="nchw,chwf->nf", c=3, h=7, w=9, f=5)
LOSS = CrossEntropy()


@pytest.fixture
def arrays():
    return Images(num_samples=2000).arrays(CAMERA, LOSS, 0, None)


def test_images_suit_a_model_of_images():
    assert Images().problem_with(CAMERA, LOSS, None) is None
    assert Images().lengths_of(CAMERA, LOSS, 0, None) == {}


def test_images_have_the_models_size_and_its_classes(arrays):
    assert arrays["x"].shape == (2000, 3, 7, 9)
    assert arrays["x"].dtype == np.float32
    assert arrays["y"].dtype == np.int64
    assert sorted(set(arrays["y"])) == [0, 1, 2, 3, 4]


def test_the_pixels_of_a_class_are_noise_around_its_colours(arrays):
    for label in range(5):
        pixels = arrays["x"][arrays["y"] == label]
        np.testing.assert_allclose(pixels.std(axis=0), 1, atol=0.2)
        assert abs(pixels.mean(axis=0)).max() > 0.5


def test_a_patch_has_one_colour():
    model = EinsumModel(equation="nchw,chwf->nf", c=1, h=16, w=16, f=1)
    x = Images(num_samples=20_000).arrays(model, LOSS, 0, None)["x"].mean(axis=0)[0]
    patches = x.reshape(4, 4, 4, 4)
    np.testing.assert_allclose(patches, patches[:, :1, :, :1].repeat(4, 1).repeat(4, 3), atol=0.05)
    assert x.std() > 0.5


@for_each(("height", "width"), [(1, 1), (2, 3), (5, 4)])
def test_images_may_be_smaller_than_the_patches(height, width):
    model = EinsumModel(equation="nchw,chwf->nf", c=1, h=height, w=width, f=2)
    assert Images(num_samples=3).arrays(model, LOSS, 0, None)["x"].shape == (3, 1, height, width)


def test_the_nearest_mean_tells_the_classes_of_other_images(arrays):
    flat, labels = arrays["x"].reshape(2000, -1), arrays["y"]
    means = np.stack([flat[:1000][labels[:1000] == label].mean(axis=0) for label in range(5)])
    distance = ((flat[1000:, None] - means) ** 2).sum(axis=2)
    assert (distance.argmin(axis=1) == labels[1000:]).mean() > 0.95


def test_images_do_not_suit_a_model_of_rows():
    assert Images().problem_with(MLP(widths=[4, 3]), LOSS, None) == (
        "images has samples of channels, rows and columns, but the model takes (4,)."
    )


def test_images_do_not_suit_a_loss_of_real_numbers():
    wrong = Images().problem_with(CAMERA, MSE(), None)
    assert wrong.startswith("images does not suit the loss mse: ")
