"""Dataset: samples x and targets y, real arrays from a file or from a seed."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from simdp.arrays import Array, Ints
from simdp.spec import Int, Spec
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
