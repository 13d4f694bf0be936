"""Tokens: what can be learned of them, how long they are, and what does not suit a model."""

import numpy as np
import pytest
from for_each import for_each
from pydantic import ValidationError
from reader import Reader, settled

from simdp.workload.datasets.synthetic import Tokens
from simdp.workload.losses.classification import CrossEntropy
from simdp.workload.losses.regression import MSE

TASKS = ["language_model", "classifier", "seq2seq"]
every_task = pytest.mark.parametrize("task", TASKS)


def drawn(dataset, model, loss=None, seed=0):
    model, loss = settled(dataset, model), loss or CrossEntropy()
    assert dataset.problem_with(model, loss, None) is None
    return dataset.arrays(model, loss, seed, None), dataset.lengths_of(model, loss, seed, None)


def problem(dataset, model, loss=None):
    return dataset.problem_with(settled(dataset, model), loss or CrossEntropy(), None)


# What is to be learned ---------------------------------------------------------------------------


@for_each("ignore_index", [-100, 0, -1])
def test_a_language_model_is_given_the_tokens_that_follow(ignore_index):
    dataset = Tokens(num_samples=200, sequence_length=12, min_length=3)
    arrays, lengths = drawn(dataset, Reader(), CrossEntropy(ignore_index=ignore_index))
    x, y = arrays["x"], arrays["y"]
    for i, length in enumerate(lengths["x"]):
        assert (x[i, :length] != 0).all()
        assert (x[i, length:] == 0).all()
        assert x[i, 1:length].tolist() == y[i, : length - 1].tolist()
        assert 0 < y[i, length - 1] < 20
        assert (y[i, length:] == ignore_index).all()


def test_mostly_the_next_token_follows_by_number():
    arrays, _ = drawn(Tokens(num_samples=500, sequence_length=40), Reader(vocab=30))
    following = arrays["x"] % 29 + 1  # 1 ... 29 in a circle: 0 is the padding
    assert (arrays["y"] == following).mean() == pytest.approx(0.75 + 0.25 / 29, abs=0.01)


def test_half_of_a_samples_tokens_are_those_of_its_class():
    arrays, _ = drawn(
        Tokens(num_samples=600, sequence_length=40), Reader(task="classifier", vocab=61, classes=3)
    )
    of_class = (arrays["x"] - 1) % 3 == arrays["y"][:, None]
    assert of_class.mean() == pytest.approx(2 / 3, abs=0.01)  # half, and a third of the others
    votes = np.stack([((arrays["x"] - 1) % 3 == c).sum(axis=1) for c in range(3)])
    assert (votes.argmax(axis=0) == arrays["y"]).mean() > 0.95
    assert sorted(set(arrays["y"])) == [0, 1, 2]


def test_a_translator_is_to_read_backwards():
    dataset = Tokens(num_samples=100, sequence_length=9, min_length=1)
    arrays, lengths = drawn(dataset, Reader(task="seq2seq", vocab=9, tgt_vocab=11))
    for x, tgt, y, length in zip(
        arrays["x"], arrays["tgt"], arrays["y"], lengths["x"], strict=True
    ):
        said = y[:length]
        # Words are 1 ... 8 in x and 3 ... 10 in tgt, where 1 is the beginning and 2 the end.
        assert (said - 2).tolist() == x[:length][::-1].tolist()
        assert tgt[: length + 1].tolist() == [1, *said]
        assert y[length] == 2
        assert (x[length:] == 0).all()
        assert (tgt[length + 1 :] == 0).all()
        assert (y[length + 1 :] == -100).all()
    assert lengths["tgt"].tolist() == (lengths["x"] + 1).tolist()
    assert set(arrays["x"].flat) == set(range(9))
    assert set(arrays["tgt"].flat) == {0, 1, *range(3, 11)}


@for_each(
    ("pad", "ordinary", "begin", "end"),
    [(0, {3, 4, 5}, 1, 2), (1, {3, 4, 5}, 0, 2), (5, {2, 3, 4}, 0, 1), (None, {2, 3, 4, 5}, 0, 1)],
)
def test_begin_and_end_are_the_first_tokens_but_the_padding(pad, ordinary, begin, end):
    model = Reader(task="seq2seq", vocab=6, tgt_vocab=6, pad=pad)
    arrays, _ = drawn(Tokens(num_samples=200, sequence_length=4), model)
    assert (arrays["tgt"][:, 0] == begin).all()
    assert (arrays["y"][:, -1] == end).all()
    assert set(arrays["tgt"][:, 1:].flat) == ordinary


# How long samples are ----------------------------------------------------------------------------


@every_task
def test_without_padding_all_samples_have_one_length(task):
    dataset = Tokens(num_samples=50, sequence_length=6)
    arrays, lengths = drawn(dataset, Reader(task=task, pad=None, vocab=5, tgt_vocab=5))
    assert lengths == {}
    assert arrays["x"].shape == (50, 6)
    assert (arrays["x"] == 0).any()  # a token as any other
    assert (arrays["y"] >= 0).all()


@for_each(
    ("options", "model", "longest"),
    [
        ({}, Reader(), 32),
        ({"sequence_length": 7}, Reader(), 7),
        ({}, Reader(length=9), 9),
        ({"sequence_length": 9}, Reader(length=9), 9),
        ({"sequence_length": 7}, Reader(length=9), 7),
    ],
)
def test_samples_are_as_long_as_the_data_say_or_the_model_or_32(options, model, longest):
    arrays, lengths = drawn(Tokens(num_samples=5, **options), model)
    assert lengths["x"].tolist() == [longest] * 5
    assert arrays["x"].shape[1] == settled(Tokens(**options), model).length


def test_the_targets_are_padded_to_what_the_model_takes():
    model = Reader(task="seq2seq", length=8, tgt_length=12)
    arrays, lengths = drawn(Tokens(num_samples=5, sequence_length=6), model)
    assert arrays["x"].shape == (5, 8)
    assert arrays["tgt"].shape == arrays["y"].shape == (5, 12)
    assert lengths["tgt"].tolist() == [7] * 5


def test_lengths_are_uniform_between_the_shortest_and_the_longest():
    dataset = Tokens(num_samples=40_000, sequence_length=8, min_length=3)
    found = dataset.lengths_of(Reader(length=8), CrossEntropy(), 0, None)["x"]
    counts = np.bincount(found, minlength=9)
    assert counts[:3].tolist() == [0, 0, 0]
    np.testing.assert_allclose(counts[3:] / 40_000, 1 / 6, atol=0.01)


@for_each(("options", "sigma"), [({}, 0.5), ({"sigma": 0.2}, 0.2)])
def test_lengths_are_log_normal_around_a_median(options, sigma):
    dataset = Tokens(num_samples=40_000, sequence_length=10_000, median_length=300, **options)
    found = dataset.lengths_of(Reader(length=10_000), CrossEntropy(), 0, None)["x"]
    assert np.median(found) == pytest.approx(300, rel=0.02)
    assert np.log(found).std() == pytest.approx(sigma, rel=0.02)


def test_log_normal_lengths_are_cut_to_their_range():
    dataset = Tokens(num_samples=4000, min_length=6, median_length=8, sequence_length=10, sigma=2)
    found = dataset.lengths_of(Reader(length=10), CrossEntropy(), 0, None)["x"]
    assert set(found) == {6, 7, 8, 9, 10}


@every_task
def test_lengths_are_those_of_the_arrays_without_making_them(task, monkeypatch):
    dataset = Tokens(num_samples=300, sequence_length=12, median_length=5)
    model, loss = settled(dataset, Reader(task=task)), CrossEntropy()
    arrays = dataset.arrays(model, loss, 3, None)
    monkeypatch.setattr(Tokens, "arrays", None)
    lengths = dataset.lengths_of(model, loss, 3, None)
    assert set(lengths) == set(model.graph.inputs)
    for name, found in lengths.items():
        assert ((arrays[name] != 0).sum(axis=1) == found).all()


# What does not suit ------------------------------------------------------------------------------


@for_each(
    ("options", "said"),
    [
        ({"min_length": 9, "sequence_length": 8}, "lengths must rise from min_length to"),
        ({"min_length": 9, "median_length": 8}, "lengths must rise from min_length to"),
        ({"median_length": 9, "sequence_length": 8}, "lengths must rise from min_length to"),
        ({"sigma": 1.0}, "sigma spreads lengths around median_length; give that too."),
        ({"sequence_length": 0}, "greater than or equal to 1"),
        ({"length": 5}, "unknown key 'length'"),
    ],
)
def test_lengths_that_are_not_clear_are_refused(options, said):
    with pytest.raises(ValidationError, match=said):
        Tokens(**options)


@for_each(
    ("options", "model", "said"),
    [
        (
            {"min_length": 9},
            Reader(length=8),
            "tokens has min_length 9, but its longest samples have 8 tokens.",
        ),
        (
            {"sequence_length": 9},
            Reader(length=8),
            "tokens makes x of 9 tokens, but the model takes 8; change one of them.",
        ),
        (
            {"sequence_length": 8},
            Reader(length=9, pad=None),
            "tokens makes x of 8 tokens, but the model takes 9; change one of them.",
        ),
        (
            {"sequence_length": 8},
            Reader(task="seq2seq", tgt_length=8),
            "tokens makes tgt of 9 tokens, but the model takes 8; change one of them.",
        ),
        (
            {"min_length": 3},
            Reader(length=8, pad=None),
            "tokens has samples of 3 ... 8 tokens, but the model has no padding token; "
            "give it a pad_id, or all samples one length.",
        ),
        (
            {"median_length": 3},
            Reader(length=8, pad=None),
            "tokens has samples of 1 ... 8 tokens, but the model has no padding token; "
            "give it a pad_id, or all samples one length.",
        ),
        (
            {},
            Reader(vocab=1),
            "tokens finds no token in x besides the padding; give it a larger vocabulary.",
        ),
        (
            {},
            Reader(task="seq2seq", tgt_vocab=3),
            "tokens finds no token in tgt besides padding, begin and end; "
            "give it a larger vocabulary.",
        ),
    ],
)
def test_what_does_not_suit_a_model_is_explained(options, model, said):
    assert problem(Tokens(**options), model) == said


def test_tokens_do_not_suit_a_loss_of_real_numbers():
    wrong = problem(Tokens(), Reader(), MSE())
    assert wrong.startswith("tokens does not suit the loss mse: y has shape (1, 32), but")
