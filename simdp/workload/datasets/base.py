"""The base of datasets, padding, and the dataset without data."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Array, Ints
from simdp.spec import Int, Spec, problem
from simdp.workload.datasets.lengths import AnyLengths
from simdp.workload.layers.base import Shape
from simdp.workload.losses import Loss
from simdp.workload.models import Model


class Dataset(Spec):
    """Where samples come from."""

    kind: str

    usual_loss: ClassVar[str] = "mse"
    """The loss of a workload that names none, where no file decides it."""

    @classmethod
    def loss_of(cls, given: Any, base: Path) -> str:
        """The loss of a workload that names none.

        Parameters
        ----------
        given : value
            What the scenario gives as its data set: a mapping that is not validated yet, or a data
            set.
        base : Path
            The folder that relative paths start from.
        """
        return cls.usual_loss

    @property
    def has_samples(self) -> bool:
        """Whether there are samples to deal out, of which one may differ from another."""
        return True

    @abstractmethod
    def length(self, base: Path) -> int:
        """Number of samples; ``base`` is the folder that relative paths start from."""

    def input_shapes(self, model: Model, base: Path) -> dict[str, Shape]:
        """Shape of a sample of each input, where the data has one of its own."""
        return {}

    @abstractmethod
    def problem_with(self, model: Model, loss: Loss, base: Path) -> str | None:
        """Say why these samples do not suit a model and a loss, or None."""

    @abstractmethod
    def arrays(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Array]:
        """Return the model's inputs and ``y``, each with the samples along the first axis.

        Class indices and tokens come as int64, floats of any size; the workload casts floats to
        its dtype, and changes no array in place. Where the loss can ignore targets, those that
        mean nothing hold its ``ignored_label()``.
        """

    def drawn_lengths(self, model: Model, seed: int, base: Path) -> Ints | None:
        """Tokens of each sample x of a data set that draws them; by default it does not."""
        return None

    def lengths_of(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Ints]:
        """Length of every sample without its padding, by input; by default nothing is padded.

        An input whose length the targets share reaches as far as the last target that counts.
        """
        return {}


class Synthetic(Dataset):
    """Base of the data sets that are drawn from the scenario's seed, in the model's shapes.

    Attributes
    ----------
    num_samples : int
        Samples of an epoch.
    """

    num_samples: Int = Field(1024, ge=1, le=10**9)

    def length(self, base: Path) -> int:
        return self.num_samples

    def problem_with(self, model: Model, loss: Loss, base: Path) -> str | None:
        wrong = self.problem_with_model(model)
        if wrong:
            return f"{self.kind} {wrong}"
        targets = self.targets(model)
        if np.issubdtype(targets.dtype, np.floating):
            targets = loss.drawn(targets)
        wrong = loss.problem_with(targets, model.output_shape())
        return f"{self.kind} does not suit the loss {loss.kind}: {wrong}" if wrong else None

    def problem_with_model(self, model: Model) -> str | None:
        """Say why the model cannot take these samples; by default they are real numbers x."""
        for name in model.graph.inputs:
            if model.num_tokens(name) is not None:
                return f"draws real numbers, but the model takes tokens as {name}; use tokens."
            if name != "x":
                return f"draws x, but the model takes {name} too; use npz."
        return None

    @abstractmethod
    def targets(self, model: Model) -> Array:
        """One sample's target, shaped and typed as those of `arrays`; its value means nothing."""


# Padding ------------------------------------------------------------------------------------------


def reach(counts: Array) -> Ints:
    """Length up to the last place that counts, 1 at least; `(num_samples, length)` in."""
    from_the_end = np.argmax(counts[:, ::-1], axis=1)
    return np.where(counts.any(axis=1), counts.shape[1] - from_the_end, 1)


def padded(tokens: Ints, lengths: Ints, filler: int, width: int) -> Ints:
    """Put a filler behind each sample's length, and behind them all up to a width.

    Parameters
    ----------
    tokens : ndarray, shape `(num_samples, longest)`
        Changed in place.
    lengths : ndarray, shape `(num_samples,)`
        How much of each sample stays.
    filler, width : int
        What is put, and the number of columns that come out.
    """
    tokens[np.arange(tokens.shape[1]) >= lengths[:, None]] = filler
    beyond = np.full((len(tokens), width - tokens.shape[1]), filler)
    return np.concatenate([tokens, beyond], axis=1)


# None ---------------------------------------------------------------------------------------------

NUM_SAMPLES = 1024
"""Samples of an epoch where only their lengths are given, as of the data sets that are drawn."""


class NoData(Dataset):
    """For times without numbers: every step is a full one, of samples of full length or of drawn.

    Attributes
    ----------
    lengths : Lengths or None
        How many tokens samples have; by default all that the model takes, which every step then is
        as full of. A micro-batch is padded to its longest sample.
    num_samples : int or None
        Samples of an epoch, where they have lengths; 1,024 by default.
    """

    kind: Literal["none"] = "none"
    lengths: AnyLengths | None = None
    num_samples: Int | None = Field(None, ge=1, le=10**9)

    usual_loss: ClassVar[str] = "none"

    @model_validator(mode="after")
    def _counts_what_differs(self) -> Self:
        if self.num_samples is not None and self.lengths is None:
            raise problem(
                "num_samples: without lengths samples are alike, and every step is full; add "
                "lengths, or leave this out."
            )
        return self

    @property
    def has_samples(self) -> bool:
        return self.lengths is not None

    def length(self, base: Path) -> int:
        return 0 if self.lengths is None else self.num_samples or NUM_SAMPLES

    def input_shapes(self, model: Model, base: Path) -> dict[str, Shape]:
        if self.lengths is None:
            return {}
        most = self.lengths.most(model, base)
        known = [name for name in model.graph.inputs if model.num_tokens(name) is not None]
        return {name: (most + (name == "tgt"),) for name in known}

    def problem_with(self, model: Model, loss: Loss, base: Path) -> str | None:
        if self.lengths is None:
            return None
        for name, shape in zip(model.graph.inputs, model.known_shapes(), strict=True):
            if model.num_tokens(name) is None:
                return (
                    f"lengths are of tokens, but the model takes real numbers as {name}; leave "
                    "them out."
                )
            needed = self.lengths.most(model, base) + (name == "tgt")
            if needed > shape[0]:
                return (
                    f"lengths reach {needed} tokens in {name}, but the model takes {shape[0]}; "
                    "change one of them."
                )
        return None

    def arrays(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Array]:
        return {}

    def drawn_lengths(self, model: Model, seed: int, base: Path) -> Ints | None:
        if self.lengths is None:
            return None
        most = self.lengths.most(model, base)
        return self.lengths.of_samples(self.length(base), most, seed, base)

    def lengths_of(self, model: Model, loss: Loss, seed: int, base: Path) -> dict[str, Ints]:
        found = self.drawn_lengths(model, seed, base)
        if found is None or self.lengths is None:
            return {}
        if self.lengths.shortest(base) == self.lengths.longest(base):
            return {}
        return {name: found + (name == "tgt") for name in model.graph.inputs}
