"""Digits: numbers, and the same in words."""

import numpy as np
import pytest
from for_each import for_each
from pydantic import ValidationError
from reader import Reader, settled

from simdp.workload.datasets.synthetic import WORDS, Digits, spelled
from simdp.workload.losses.classification import CrossEntropy

MODEL = Reader(task="seq2seq", vocab=11, tgt_vocab=13)


def drawn(dataset, model=MODEL, loss=None):
    model, loss = settled(dataset, model), loss or CrossEntropy()
    assert dataset.problem_with(model, loss, None) is None
    return dataset.arrays(model, loss, 0, None), dataset.lengths_of(model, loss, 0, None)


@for_each("model", [MODEL, Reader(task="seq2seq", vocab=40, tgt_vocab=40, pad=7)])
@for_each("ignore_index", [-100, 0])
def test_every_number_is_told_in_words(model, ignore_index):
    arrays, lengths = drawn(Digits(num_samples=200), model, CrossEntropy(ignore_index=ignore_index))
    for i in range(200):
        number = spelled(model, "x", arrays["x"][i])
        said = " ".join(WORDS[int(digit)] for digit in number)
        assert len(number) == lengths["x"][i]
        assert spelled(model, "tgt", arrays["tgt"][i]) == said
        assert spelled(model, "y", arrays["y"][i]) == said


def test_a_number_looks_like_this():
    arrays, _ = drawn(Digits(num_samples=400, max_digits=3))
    (place, *_) = np.flatnonzero((arrays["x"] == [2, 1, 0]).all(axis=1))  # "10"
    assert spelled(MODEL, "x", arrays["x"][place]) == "10"
    assert arrays["tgt"][place].tolist() == [1, 4, 3, 0]  # begin, one, zero
    assert arrays["y"][place].tolist() == [4, 3, 2, -100]  # one, zero, end
    assert spelled(MODEL, "y", arrays["y"][place]) == "one zero"


def test_words_end_with_the_end():
    assert spelled(MODEL, "y", np.array([5, 12, 2, 8, 8])) == "two nine"


def test_there_are_as_many_digits_as_asked_for():
    arrays, lengths = drawn(Digits(num_samples=3000, min_digits=2, max_digits=4))
    np.testing.assert_allclose(np.bincount(lengths["x"])[2:] / 3000, 1 / 3, atol=0.03)
    assert arrays["x"].shape == (3000, 4)
    assert arrays["tgt"].shape == arrays["y"].shape == (3000, 5)
    digits = arrays["x"][arrays["x"] > 0]
    np.testing.assert_allclose(np.bincount(digits)[1:] / len(digits), 0.1, atol=0.01)


def test_targets_follow_what_the_decoder_is_given():
    arrays, lengths = drawn(Digits(num_samples=50))
    for tgt, y, length in zip(arrays["tgt"], arrays["y"], lengths["tgt"], strict=True):
        assert tgt[1:length].tolist() == y[: length - 1].tolist()


def test_numbers_of_one_length_need_no_padding():
    model = Reader(task="seq2seq", vocab=10, tgt_vocab=12, pad=None)
    arrays, lengths = drawn(Digits(num_samples=50, min_digits=6), model)
    assert lengths == {}
    assert spelled(model, "y", arrays["y"][0]).count(" ") == 5


@for_each(
    ("model", "said"),
    [
        (
            Reader(task="language_model"),
            "digits needs a model with x and tgt: a transformer with task: seq2seq.",
        ),
        (
            Reader(task="seq2seq", vocab=10),
            "digits needs 11 tokens in x, for padding, ten digits, but the model has 10; "
            "give it a larger vocabulary.",
        ),
        (
            Reader(task="seq2seq", tgt_vocab=12),
            "digits needs 13 tokens in tgt, for padding, begin, end, ten words, but the model "
            "has 12; give it a larger vocabulary.",
        ),
        (
            Reader(task="seq2seq", pad=None),
            "digits has samples of 1 ... 6 tokens, but the model has no padding token; "
            "give it a pad_id, or all samples one length.",
        ),
        (
            Reader(task="seq2seq", length=5),
            "digits makes x of 6 tokens, but the model takes 5; change one of them.",
        ),
    ],
)
def test_what_does_not_suit_a_model_is_explained(model, said):
    dataset = Digits()
    assert dataset.problem_with(settled(dataset, model), CrossEntropy(), None) == said


def test_a_model_without_padding_needs_one_token_less():
    model = settled(Digits(), Reader(task="seq2seq", vocab=9, pad=None))
    wrong = Digits(min_digits=6).problem_with(model, CrossEntropy(), None)
    assert wrong == (
        "digits needs 10 tokens in x, for ten digits, but the model has 9; "
        "give it a larger vocabulary."
    )


def test_fewest_digits_are_no_more_than_most():
    with pytest.raises(ValidationError, match="min_digits is 7, but max_digits 6"):
        Digits(min_digits=7)
