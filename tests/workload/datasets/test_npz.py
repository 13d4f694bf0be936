"""Arrays from a file: read as they are, read once, and refused with the reason."""

import numpy as np
import pytest
from for_each import for_each
from reader import Reader, settled

from simdp.errors import ScenarioError
from simdp.files import read_npz
from simdp.workload.datasets import files
from simdp.workload.datasets.files import Npz
from simdp.workload.losses.classification import CrossEntropy
from simdp.workload.losses.regression import MSE
from simdp.workload.models.sequential import MLP

DATA = Npz(path="data.npz")
PERCEPTRON = MLP(widths=[4, 3])
LOSS = CrossEntropy(ignore_index=0)

# Padding is 0: samples of 3, 4, 1 and 2 tokens. Words are 1 ... 4.
X = np.array([[1, 2, 3, 0], [4, 3, 2, 1], [2, 0, 0, 0], [3, 3, 0, 0]])
TGT = np.array([[1, 2, 0], [1, 0, 0], [1, 4, 3], [1, 4, 0]])
Y = np.array([[2, 0, 0], [2, 0, 0], [4, 3, 2], [4, 0, 0]])
LABELS = np.array([0, 2, 1, 1])
FOLLOWING = np.array([[2, 3, 0, 0], [3, 2, 1, 4], [0, 0, 3, 0], [3, 0, 0, 0]])


@pytest.fixture
def store(tmp_path):
    def store(**arrays):
        np.savez(tmp_path / "data.npz", **arrays)
        return tmp_path

    return store


def reader(task):
    return Reader(task=task, vocab=5, tgt_vocab=5, classes=3)


# Reading -----------------------------------------------------------------------------------------


def test_a_file_is_read_in_its_order_as_floats_and_whole_numbers(store):
    x, y = np.arange(8, dtype=np.float32).reshape(2, 4), np.array([2, 0], np.uint8)
    base = store(x=x, y=y, more=np.array(["not", "ours"]))
    arrays = DATA.arrays(PERCEPTRON, CrossEntropy(), 0, base)
    assert set(arrays) == {"x", "y"}
    np.testing.assert_array_equal(arrays["x"], x)
    assert arrays["x"].dtype == np.float32
    assert arrays["y"].tolist() == [2, 0]
    assert arrays["y"].dtype == np.int64


def test_a_file_tells_a_model_the_shapes_of_its_samples(store):
    model = reader("seq2seq")
    base = store(x=X, tgt=TGT, y=Y)
    assert DATA.input_shapes(model, base) == {"x": (4,), "tgt": (3,)}
    assert settled(DATA, model, base).known_shapes() == ((4,), (3,))
    assert DATA.length(base) == 4


def test_a_file_is_read_once_until_it_changes(store, monkeypatch):
    reads = []
    monkeypatch.setattr(files, "read_npz", lambda path: reads.append(path) or read_npz(path))
    x = np.zeros((2, 4))
    for value, times in ((0.0, 1), (1.0, 2)):
        base = store(x=x + value, y=np.zeros((2, 3)))
        for _ in range(3):
            assert DATA.length(base) == 2
            assert DATA.arrays(PERCEPTRON, MSE(), 0, base)["x"][0, 0] == value
        assert len(reads) == times


def test_what_was_read_cannot_be_changed(store):
    base = store(x=np.zeros((2, 4)), y=np.zeros((2, 3)))
    with pytest.raises(ValueError, match="read-only"):
        DATA.arrays(PERCEPTRON, MSE(), 0, base)["x"][0] = 1


# Lengths -----------------------------------------------------------------------------------------


def test_a_sample_is_as_long_as_it_reaches_before_its_padding(store):
    base, model = store(x=X, y=LABELS), reader("classifier")
    found = DATA.lengths_of(settled(DATA, model, base), LOSS, 0, base)
    assert {name: lengths.tolist() for name, lengths in found.items()} == {"x": [3, 4, 1, 2]}


def test_the_targets_that_count_make_a_sample_longer(store):
    base, model = store(x=X, y=FOLLOWING), reader("language_model")
    found = DATA.lengths_of(settled(DATA, model, base), LOSS, 0, base)
    assert found["x"].tolist() == [3, 4, 3, 2]


def test_each_input_has_lengths_of_its_own(store):
    base, model = store(x=X, tgt=TGT, y=Y), reader("seq2seq")
    found = DATA.lengths_of(settled(DATA, model, base), LOSS, 0, base)
    assert {name: lengths.tolist() for name, lengths in found.items()} == {
        "x": [3, 4, 1, 2],
        "tgt": [2, 1, 3, 2],
    }
    every_target_counts = DATA.lengths_of(settled(DATA, model, base), CrossEntropy(), 0, base)
    assert every_target_counts["tgt"].tolist() == [3, 3, 3, 3]


def test_padding_in_the_middle_and_at_the_front_is_kept(store):
    base, model = store(x=np.array([[0, 2, 0, 1, 0]]), y=LABELS[:1]), reader("classifier")
    assert DATA.lengths_of(settled(DATA, model, base), LOSS, 0, base)["x"].tolist() == [4]


def test_without_a_padding_token_there_are_no_lengths(store):
    base = store(x=X, y=LABELS)
    model = reader("classifier").model_copy(update={"pad": None})
    assert DATA.lengths_of(settled(DATA, model, base), LOSS, 0, base) == {}


# What is refused ---------------------------------------------------------------------------------


@for_each(
    ("task", "arrays"),
    [
        ("classifier", {"x": X, "y": LABELS}),
        ("language_model", {"x": X, "y": FOLLOWING}),
        ("language_model", {"x": X.astype(np.uint8), "y": FOLLOWING.astype(np.int16)}),
        ("language_model", {"x": X > 0, "y": FOLLOWING}),
        ("seq2seq", {"x": X, "tgt": TGT, "y": Y}),
        ("classifier", {"x": np.array([[0, 1]]), "y": LABELS[:1]}),
    ],
)
def test_what_suits_is_taken(task, arrays, store):
    base = store(**arrays)
    assert DATA.problem_with(settled(DATA, reader(task), base), LOSS, base) is None


@for_each(
    ("task", "arrays", "said"),
    [
        (
            "classifier",
            {"x": X + 1, "y": LABELS},
            "x holds tokens 1 ... 5, but the model has 5; tokens must be 0 ... 4.",
        ),
        (
            "classifier",
            {"x": X - 1, "y": LABELS},
            "x holds tokens -1 ... 3, but the model has 5; tokens must be 0 ... 4.",
        ),
        (
            "seq2seq",
            {"x": X, "tgt": TGT + 3, "y": Y},
            "tgt holds tokens 3 ... 7, but the model has 5; tokens must be 0 ... 4.",
        ),
        (
            "classifier",
            {"x": X.astype(float), "y": LABELS},
            "x is float64, but the model takes tokens: whole numbers.",
        ),
        (
            "classifier",
            {"x": np.where(np.arange(4)[:, None] >= 2, 0, X), "y": LABELS},
            "x of sample 2 consists of padding only, token 0; leave such samples out.",
        ),
        (
            "seq2seq",
            {"x": X, "tgt": np.zeros_like(TGT), "y": Y},
            "tgt of sample 0 consists of padding only, token 0; leave such samples out.",
        ),
        (
            "classifier",
            {"x": X, "y": LABELS + 1},
            "y holds labels 1 ... 3, but the model has 3 classes; "
            "labels must be 0 ... 2 or ignore_index 0.",
        ),
        (
            "language_model",
            {"x": X, "y": FOLLOWING + 1},
            "y holds labels 1 ... 5, but the model has 5 classes; "
            "labels must be 0 ... 4 or ignore_index 0.",
        ),
        (
            "language_model",
            {"x": X, "y": FOLLOWING[:, :3]},
            "y has shape (4, 3), but cross_entropy needs class indices (4, 4).",
        ),
        (
            "seq2seq",
            {"x": X, "tgt": TGT, "y": FOLLOWING},
            "y has shape (4, 4), but cross_entropy needs class indices (4, 3).",
        ),
        (
            "classifier",
            {"x": X, "y": LABELS.astype(float)},
            "y is float64, but cross_entropy needs class indices: whole numbers.",
        ),
    ],
)
def test_what_does_not_suit_a_model_is_explained(task, arrays, said, store):
    base = store(**arrays)
    assert DATA.problem_with(settled(DATA, reader(task), base), LOSS, base) == said


def test_tokens_of_another_length_than_the_models_are_refused(store):
    base = store(x=X, y=LABELS)
    model = reader("classifier").model_copy(update={"length": 5})
    assert DATA.problem_with(model, LOSS, base) == (
        "x has shape (4, 4), but the model takes samples of shape (5,)."
    )


@for_each(
    ("arrays", "said"),
    [
        ({"x": X, "y": Y}, "has no array 'tgt'; it holds x, y; store x, tgt and y."),
        (
            {"x": X, "tgt": TGT[:3], "y": Y},
            "x has shape (4, 4) and tgt (3, 3); give both as many samples.",
        ),
        (
            {"x": X, "tgt": TGT, "y": Y[:3]},
            "x has shape (4, 4) and y (3, 3); give both as many samples.",
        ),
        (
            {"x": X, "tgt": TGT.astype(complex), "y": Y},
            "tgt is complex128; store real or whole numbers.",
        ),
        ({"x": X, "tgt": TGT, "y": Y.astype(str)}, "y is <U21; store real or whole numbers."),
    ],
)
def test_a_file_that_cannot_be_read_is_explained(arrays, said, store):
    base = store(**arrays)
    with pytest.raises(ScenarioError) as caught:
        DATA.arrays(reader("seq2seq"), LOSS, 0, base)
    assert caught.value.problems == [f"{base / 'data.npz'}: {said}"]


def test_a_file_that_is_missing_or_no_npz_is_explained(tmp_path):
    with pytest.raises(ScenarioError, match="there is no such file"):
        DATA.length(tmp_path)
    (tmp_path / "data.npz").write_text("nothing")
    with pytest.raises(ScenarioError, match="is not an npz file of arrays"):
        DATA.length(tmp_path)
