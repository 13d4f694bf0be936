"""Sequences: base of the synthetic data sets of tokens, whose samples may differ in length."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

import numpy as np

from simdp.arrays import Array, Ints
from simdp.workload.datasets.base import Synthetic
from simdp.workload.datasets.padding import padded
from simdp.workload.layers.base import Shape
from simdp.workload.losses import Loss
from simdp.workload.models import Model


class Sequences(Synthetic):
    """Samples x of tokens, padded to the longest; for sequence to sequence also targets tgt.

    y is a sentence and its end; tgt is a beginning and the sentence, so that at each place the
    decoder has seen what comes before. Beginning and end are the first tokens but the padding.
    """

    usual_loss: ClassVar[str] = "cross_entropy"

    @abstractmethod
    def shortest(self, model: Model, base: Path) -> int:
        """Fewest tokens that a sample x may have."""

    @abstractmethod
    def longest(self, model: Model, base: Path) -> int:
        """Most tokens that a sample x may have."""

    @abstractmethod
    def source_lengths(self, model: Model, seed: int, base: Path) -> Ints:
        """Tokens of each sample x, shape `(num_samples,)`."""

    def problem_with_tokens(self, model: Model) -> str | None:
        """Say what else the model lacks; by default nothing."""
        return None

    def targets(self, model: Model) -> Array:
        return np.zeros((1, *model.output_shape()[:-1]), dtype=np.int64)

    def input_shapes(self, model: Model, base: Path) -> dict[str, Shape]:
        known = [name for name in model.graph.inputs if model.num_tokens(name) is not None]
        return {name: (self.longest(model, base) + (name == "tgt"),) for name in known}

    def drawn_lengths(self, model: Model, seed: int, base: Path) -> Ints:
        return self.source_lengths(model, seed, base)

    def lengths_of(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Ints]:
        if not self._may_differ(model, base):
            return {}
        found = self.source_lengths(model, seed, base)
        return {name: found + (name == "tgt") for name in model.graph.inputs}

    def _may_differ(self, model: Model, base: Path) -> bool:
        """Whether samples are padded: by a token that is nothing else, or where nobody looks."""
        if model.padding is not None:
            return True
        return model.padding_is_unseen and self.shortest(model, base) < self.longest(model, base)

    def problem_with(self, model: Model, loss: Loss, base: Path) -> str | None:
        wrong = self.problem_with_model(model) or self._problem_with_lengths(model, base)
        return f"{self.kind} {wrong}" if wrong else super().problem_with(model, loss, base)

    def problem_with_model(self, model: Model) -> str | None:
        real = [name for name in model.graph.inputs if model.num_tokens(name) is None]
        if real:
            return f"draws tokens, but the model takes real numbers as {real[0]}; use npz."
        return self.problem_with_tokens(model)

    def _problem_with_lengths(self, model: Model, base: Path) -> str | None:
        low, high = self.shortest(model, base), self.longest(model, base)
        padded = self._may_differ(model, base)
        if low > high:
            return f"has min_length {low}, but its longest samples have {high} tokens."
        for name, (length,) in zip(model.graph.inputs, model.known_shapes(), strict=True):
            needed = high + (name == "tgt")
            if length < needed or (length > needed and not padded):
                return (
                    f"makes {name} of {needed} tokens, but the model takes {length}; "
                    "change one of them."
                )
        if low < high and not padded:
            return (
                f"has samples of {low} ... {high} tokens, but the model has no padding token; "
                "give it a pad_id, or all samples one length."
            )
        return None

    def translated(
        self, model: Model, loss: Loss, source: Ints, target: Ints, lengths: Ints
    ) -> dict[str, Array]:
        """Make x, tgt and y of numbered words.

        Parameters
        ----------
        source, target : ndarray, shape `(num_samples, longest)`
            Positions in `words` of x and of tgt.
        lengths : ndarray, shape `(num_samples,)`
            How many of them each sample has.
        """
        begin, end = begin_and_end(model)
        said = words(model, "tgt")[target]
        border = np.full((len(said), 1), begin)
        ended = np.concatenate([said, border], axis=1)
        np.put_along_axis(ended, lengths[:, None], end, axis=1)
        x_width, tgt_width = (shape[0] for shape in model.known_shapes())
        filler, ignored = model.padding or 0, loss.ignored_label() or 0
        return {
            "x": padded(words(model, "x")[source], lengths, filler, x_width),
            "tgt": padded(np.concatenate([border, said], axis=1), lengths + 1, filler, tgt_width),
            "y": padded(ended, lengths + 1, ignored, tgt_width),
        }


def words(model: Model, name: str) -> Ints:
    """Tokens of an input that are neither padding nor, in ``tgt``, a beginning or an end."""
    tokens = _without_padding(model, name)
    return tokens[2:] if name == "tgt" else tokens


def begin_and_end(model: Model) -> tuple[int, int]:
    """Tokens of ``tgt`` that stand before and after a sentence: the first but the padding."""
    begin, end = _without_padding(model, "tgt")[:2]
    return int(begin), int(end)


def _without_padding(model: Model, name: str) -> Ints:
    tokens = np.arange(model.num_tokens(name) or 0)
    return tokens if model.padding is None else np.delete(tokens, model.padding)
