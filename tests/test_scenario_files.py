"""The files that a scenario names: where they are looked for, and what of them is refused."""

import numpy as np
from for_each import for_each
from small_scenario import WEIGHTS

NPZ = {"kind": "npz", "path": "data.npz"}


@for_each(
    "overrides",
    [
        {"workload.dataset": {"kind": "npz", "path": "none.npz"}},
        {"workload.weights": "none.npz"},
        {"workload.shuffle": {"path": "none.npz"}},
    ],
    ids=str,
)
def test_a_missing_file_is_reported_once_at_its_key(overrides, refuse, tmp_path):
    (key,) = overrides
    assert refuse(overrides) == [f"{key}: {tmp_path / 'none.npz'}: there is no such file."]


def test_a_file_that_is_no_npz_is_refused(refuse, tmp_path):
    (tmp_path / "data.npz").write_text("x, y")
    assert refuse({"workload.dataset": NPZ}) == [
        f"workload.dataset: {tmp_path / 'data.npz'}: is not an npz file of arrays."
    ]


def test_paths_start_from_the_scenario_file(load, tmp_path):
    np.savez(tmp_path / "data.npz", x=np.zeros((8, 4)), y=np.zeros((8, 3)))
    np.savez(tmp_path / "w.npz", **WEIGHTS)
    np.savez(tmp_path / "order.npz", np.arange(8))
    scenario = load(
        {
            "workload.dataset": NPZ,
            "workload.weights": "w.npz",
            "workload.shuffle": {"path": "order.npz"},
        }
    )
    assert scenario.base == tmp_path
    assert scenario.workload.dataset.length(scenario.base) == 8


@for_each(
    ("arrays", "loss", "said"),
    [
        ({"x": np.zeros((8, 4))}, "mse", "has no array 'y'; it holds x; store x and y."),
        ({"y": np.zeros((8, 3))}, "mse", "has no array 'x'; it holds y; store x and y."),
        ({}, "mse", "has no array 'x'; it holds nothing; store x and y."),
        (
            {"x": np.zeros((8, 4)), "y": np.zeros((7, 3))},
            "mse",
            "x has shape (8, 4) and y (7, 3); give both as many samples.",
        ),
        (
            {"x": np.zeros((0, 4)), "y": np.zeros((0, 3))},
            "mse",
            "x has shape (0, 4) and y (0, 3); give both as many samples.",
        ),
        (
            {"x": np.float64(1), "y": np.float64(1)},
            "mse",
            "x has shape () and y (); give both as many samples.",
        ),
        (
            {"x": np.zeros((8, 5)), "y": np.zeros((8, 3))},
            "mse",
            "x has shape (8, 5), but the model takes samples of shape (4,).",
        ),
        (
            {"x": np.zeros((8, 4), int), "y": np.zeros((8, 3))},
            "mse",
            "x is int64 or has values that are not finite; give finite floats.",
        ),
        (
            {"x": np.full((8, 4), np.nan), "y": np.zeros((8, 3))},
            "mse",
            "x is float64 or has values that are not finite; give finite floats.",
        ),
        (
            {"x": np.zeros((8, 4)), "y": np.zeros((8, 2))},
            "mse",
            "y has shape (8, 2), but the model makes (3,) of each sample; give y the shape (8, 3).",
        ),
        (
            {"x": np.zeros((8, 4)), "y": np.full((8, 3), np.inf)},
            "mse",
            "y is float64 or has values that are not finite; give finite floats.",
        ),
        (
            {"x": np.zeros((8, 4)), "y": np.zeros((8, 1), int)},
            "cross_entropy",
            "y has shape (8, 1), but cross_entropy needs class indices (8,).",
        ),
        (
            {"x": np.zeros((8, 4)), "y": np.zeros(8)},
            "cross_entropy",
            "y is float64, but cross_entropy needs class indices: whole numbers.",
        ),
        (
            {"x": np.zeros((8, 4)), "y": np.arange(8)},
            "cross_entropy",
            "y holds labels 0 ... 7, but the model has 3 classes; "
            "labels must be 0 ... 2 or ignore_index -100.",
        ),
        (
            {"x": np.zeros((8, 4)), "y": np.full(8, -1)},
            "cross_entropy",
            "y holds labels -1 ... -1, but the model has 3 classes; "
            "labels must be 0 ... 2 or ignore_index -100.",
        ),
    ],
)
def test_wrong_data_is_refused(arrays, loss, said, refuse, tmp_path):
    np.savez(tmp_path / "data.npz", **arrays)
    assert refuse({"workload.dataset": NPZ, "workload.loss": loss}) == [
        f"workload.dataset: {tmp_path / 'data.npz'}: {said}"
    ]


@for_each("x", [np.full((8, 4), "a"), np.ones((8, 4), complex)], ids=["text", "complex"])
def test_data_that_are_no_real_numbers_are_refused(x, refuse, tmp_path):
    np.savez(tmp_path / "data.npz", x=x, y=np.zeros((8, 3)))
    (line,) = refuse({"workload.dataset": NPZ})
    assert "x is " in line


def test_ignored_labels_are_allowed(load, tmp_path):
    np.savez(tmp_path / "data.npz", x=np.zeros((8, 4)), y=np.array([0, 1, 2, -100] * 2))
    scenario = load({"workload.dataset": NPZ, "workload.loss": "cross_entropy"})
    assert scenario.workload.dataset.length(scenario.base) == 8


@for_each(
    ("arrays", "said"),
    [
        (
            {"layers.0.weight": np.zeros((3, 4))},
            "has no 'layers.0.bias' of shape (3,).",
        ),
        ({**WEIGHTS, "extra": np.zeros(1)}, "has 'extra', which the model lacks."),
        (
            {**WEIGHTS, "layers.0.weight": np.zeros((4, 3))},
            "has 'layers.0.weight' of shape (4, 3), the model needs (3, 4).",
        ),
        (
            {"b": np.zeros(1), "a": np.zeros(1)},
            "has 'a', which the model lacks; has 'b', which the model lacks; "
            "has no 'layers.0.bias' of shape (3,) (and 1 more).",
        ),
    ],
)
def test_wrong_weights_are_refused(arrays, said, refuse, tmp_path):
    np.savez(tmp_path / "w.npz", **arrays)
    assert refuse({"workload.weights": "w.npz"}) == [
        f"workload.weights: {tmp_path / 'w.npz'}: {said}"
    ]


@for_each(
    "bad",
    [np.full(3, "a"), np.ones(3, complex), np.ones(3, bool), np.array([0, np.nan, 0])],
    ids=["text", "complex", "boolean", "nan"],
)
def test_weights_that_are_no_finite_real_numbers_are_refused(bad, refuse, tmp_path):
    np.savez(tmp_path / "w.npz", **{**WEIGHTS, "layers.0.bias": bad})
    assert refuse({"workload.weights": "w.npz"}) == [
        f"workload.weights: {tmp_path / 'w.npz'}: "
        f"has 'layers.0.bias' of {bad.dtype} that is not all finite numbers."
    ]


@for_each(
    "arrays",
    [
        {"a": np.arange(63)},
        {"a": np.zeros(64)},
        {"a": np.arange(64) + 1},
        {"a": np.stack([np.arange(64), np.zeros(64)])},
        {"a": np.arange(64).reshape(1, 1, 64)},
        {"a": np.full(64, "a")},
        {"a": np.zeros((0, 64))},
        {"a": np.arange(64), "b": np.arange(64)},
        {},
    ],
)
def test_what_is_no_permutation_is_refused(arrays, refuse, tmp_path):
    np.savez(tmp_path / "order.npz", **arrays)
    assert refuse({"workload.shuffle": {"path": "order.npz"}}) == [
        f"workload.shuffle: {tmp_path / 'order.npz'}: is no order of the dataset; store one array "
        "of shape (64,) or (epochs, 64), each row a permutation of 0 ... 63."
    ]
