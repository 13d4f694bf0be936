"""Numbers to words: "105" is to be read as "one zero five"."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from simdp.arrays import Array, Ints
from simdp.rng import stream
from simdp.spec import Int, problem
from simdp.workload.datasets.sequences import Sequences, begin_and_end, words
from simdp.workload.losses import Loss
from simdp.workload.models import Model

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


class Digits(Sequences):
    """Numbers of several digits, and the same as words; for a transformer of task seq2seq.

    With padding 0, the digits are the tokens 1 ... 10 of x, and the words 3 ... 12 of tgt and y,
    after the beginning, 1, and the end, 2.

    Attributes
    ----------
    min_digits, max_digits : int
        Each sample has a random number of digits in between.
    """

    kind: Literal["digits"] = "digits"
    min_digits: Int = Field(1, ge=1, le=10**4)
    max_digits: Int = Field(6, ge=1, le=10**4)

    @model_validator(mode="after")
    def _digits_are_a_range(self) -> Self:
        if self.min_digits > self.max_digits:
            raise problem(
                f"min_digits is {self.min_digits}, but max_digits {self.max_digits}; "
                "make it no larger."
            )
        return self

    def shortest(self, model: Model, base: Path) -> int:
        return self.min_digits

    def longest(self, model: Model, base: Path) -> int:
        return self.max_digits

    def source_lengths(self, model: Model, seed: int, base: Path) -> Ints:
        random = stream(seed, "dataset", "digits", "lengths")
        low, high = self.min_digits, self.max_digits
        return random.integers(low, high, size=self.num_samples, endpoint=True)

    def problem_with_tokens(self, model: Model) -> str | None:
        if "tgt" not in model.graph.inputs:
            return "is read aloud by a model with x and tgt: a transformer with task: seq2seq."
        special = [] if model.padding is None else ["padding"]
        for name, needed in (
            ("x", [*special, "ten digits"]),
            ("tgt", [*special, "begin", "end", "ten words"]),
        ):
            if len(words(model, name)) < len(WORDS):
                return (
                    f"needs {len(needed) + 9} tokens in {name}, for {', '.join(needed)}, but the "
                    f"model knows {model.num_tokens(name)}; give it a larger vocabulary."
                )
        return None

    def arrays(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Array]:
        random = stream(seed, "dataset", "digits")
        digits = random.integers(len(WORDS), size=(self.num_samples, self.max_digits))
        lengths = self.source_lengths(model, seed, base)
        return self.translated(model, loss, digits, digits, lengths)


def spelled(model: Model, name: str, tokens: Array) -> str:
    """What a row of an array says.

    Parameters
    ----------
    model : Model
        Whose tokens they are.
    name : {"x", "tgt", "y"}
        Which array, or what it is to equal: a model's choices are read like y.
    tokens : ndarray, shape `(length,)`

    Returns
    -------
    str
        ``"105"`` for x, else ``"one zero five"``; ends at the end token, if there is one, and
        leaves out every token that is no digit and no word.
    """
    source = name == "x"
    known = words(model, "x" if source else "tgt")[: len(WORDS)].tolist()
    end = None if source else begin_and_end(model)[1]
    read = []
    for token in tokens.tolist():
        if token == end:
            break
        if token in known:
            read.append(known.index(token))
    return "".join(map(str, read)) if source else " ".join(WORDS[digit] for digit in read)
